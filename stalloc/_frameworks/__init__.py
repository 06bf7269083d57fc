"""Private parts of the modules that hook stalloc into a framework."""
