/* The loops of host_kernels.c as GPU kernels. They are compiled at run time, without contraction
 * and with exact division, like the host's loops, so they give the same bits. */

#include "adamw_element.h"

/* AdamW step with one thread for each element. Moments in 8 bits are not supported. */
KERNEL atom_adamw(const struct adamw step, const int64_t count, const uint64_t first,
                  const float decay) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const struct adamw_terms terms = adamw_terms_of(&step, first + (uint64_t)i, decay);
    adamw_element(terms, i, (uint32_t)(first + (uint64_t)i), step.gradient_format,
                  step.master_format, step.moment_format, step.working_format, step.master,
                  step.working, step.exp_avg, step.exp_avg_sq, step.gradient);
}

/* Sums of squares of each lane, in the order of the rows, with one thread for each sum. A block has
 * `rows` rows of `lanes` numbers; the last block may be shorter. */
KERNEL atom_squares(const float *x, const int64_t count, double *lane, const int64_t lanes,
                    const int64_t rows) {
    const int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int64_t block = at / lanes, start = block * rows * lanes + at % lanes;
    if (block * rows * lanes >= count) return;
    double sum = 0.0;
    for (int64_t row = 0; row < rows && start + row * lanes < count; row++) {
        const double value = x[start + row * lanes];
        sum += value * value;
    }
    lane[at] = sum;
}
