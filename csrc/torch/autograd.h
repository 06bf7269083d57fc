// The state of autograd on the calling thread.
#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include "runtime/threads.h"

namespace stalloc::torch_adapters {

// Returns true if the calling thread runs a backward pass, perhaps for another thread.
inline bool in_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

// Returns the thread_id() of nodes that the calling thread makes.
inline std::uint64_t autograd_thread() { return at::RecordFunction::currentThreadId(); }

// The node that autograd runs on the calling thread. None while checkpointing computes a forward
// anew: the node that asks for it has made none of these requests. The same applies to a backward
// with create_graph, which cannot be told from that.
inline runtime::NodeSequence running_node() {
  if (!in_backward() || at::GradMode::is_enabled()) return std::nullopt;
  const auto node = torch::autograd::get_current_node();
  return node ? runtime::NodeSequence(
                    runtime::node_of_thread(node->thread_id(), node->sequence_nr()))
              : std::nullopt;
}

}  // namespace stalloc::torch_adapters
