"""Estimates beside what others measured on GPUs."""
