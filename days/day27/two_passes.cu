// Day 27, v1 and v2: each gradient is written by one block, so that two runs give equal bits. The
// ladder stands in flash_attention_backward.cu.
//
// Run: python run_day.py 27

#include "days/day27/keys_stay.cuh"
#include "days/day27/rows_stay.cuh"

// ahead: tiles that are loaded while another is multiplied, 0 or 1.
Gradients two_passes(const Arguments& a, const char* name, int ahead) {
  return backward(a, name, [&]<typename T>(const Given<T>& in, auto d, int64_t heads, auto& made) {
    launch_keys_stay<false, T, d()>(a.q, in, heads, ahead, nullptr, made);
    launch_rows_stay<T, d()>(a.q, in, heads, ahead, mutable_data<T>(std::get<0>(made)));
  });
}

Gradients attention_backward_v1_two_passes(ARGUMENTS) {
  return two_passes({go, glse, q, k, v, o, lse, causal}, "v1_two_passes", 0);
}

Gradients attention_backward_v2_pipelined(ARGUMENTS) {
  return two_passes({go, glse, q, k, v, o, lse, causal}, "v2_pipelined", 1);
}

// ---------------------------------------------------------------------------------------------

RUNG(day27, attention_backward_v1_two_passes, INPUTS);
RUNG(day27, attention_backward_v2_pipelined, INPUTS);
