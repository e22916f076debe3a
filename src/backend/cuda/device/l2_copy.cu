/* l2_copy.cu - the copy of a weight that l2_copy.h describes: which shapes there are, and the kernel that puts each
 * row's pieces to their places. When weights are loaded; not a node of a step. */
#include "backend/cuda/device/l2_copy.h"
#include "backend/cuda/value.h"

namespace {

enum { THREADS = 256, HALF_ROWS = 4 * L2_COPY_CHUNK_ROWS, VECTORS = L2_COPY_PIECE / 16 };

int up_to(int64_t n, int64_t of) { return (int)((n + of - 1) / of); }

/* A piece of a tile, to both sides. */
__global__ void __launch_bounds__(THREADS) lay_out_near(dl2_copy n, dweight w) {
    int piece = blockIdx.x, tile = blockIdx.y;
    int rows = n.shape.rows / n.shape.halves, apart = (int)w.out / n.shape.halves;
    for (int i = threadIdx.x; i < n.shape.rows * VECTORS; i += THREADS) {
        int row = i / VECTORS, byte = i % VECTORS * 16, of_half = tile * rows + row % rows;
        int64_t column = (int64_t)piece * L2_COPY_PIECE + byte;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (of_half < apart && column < w.in)
            v = *reinterpret_cast<const uint4 *>(static_cast<const char *>(w.at) +
                                                 (int64_t)(row / rows * apart + of_half) * w.in + column);
        for (int side = 0; side < 2; side++)
            *reinterpret_cast<uint4 *>(n.at + l2_copy_row(&n, tile, side, piece, row) + byte) = v;
    }
}

} // namespace

int l2_copy_pages(const struct dl2_copy *n) {
    return up_to((int64_t)n->n_tiles * n->tile_groups * L2_COPY_GROUP, SIDES_PAGE);
}

bool l2_copy_lay_out(struct dweight w, struct l2_copy_shape shape, struct dl2_copy *out) {
    *out = {};
    int tail = shape.rows > HALF_ROWS ? shape.rows - HALF_ROWS : 0, parts = up_to(tail, L2_COPY_CHUNK_ROWS);
    bool fits = shape.rows > 0 && shape.rows % (8 * shape.halves) == 0 && (parts == 0 || tail % parts == 0) &&
                w.out % shape.halves == 0;
    if (w.element != ELEMENT_E4M3 || w.in % 16 != 0 || w.out > INT32_MAX / 4 || w.in > INT32_MAX / 4 || !fits)
        return false;
    out->shape = shape;
    out->n_tiles = up_to(w.out, shape.rows);
    out->n_pieces = up_to(w.in, L2_COPY_PIECE);
    out->chunk_rows = (shape.rows - tail) / 4;
    while (out->chunk_rows << (out->pieces_log + 1) <= L2_COPY_CHUNK_ROWS)
        out->pieces_log++;
    out->n_tail_parts = parts;
    out->tail_rows = parts ? tail / parts : 0;
    while (parts && out->tail_rows << (out->tails_log + 1) <= L2_COPY_CHUNK_ROWS)
        out->tails_log++;
    out->tile_groups =
        up_to(out->n_pieces, 1 << out->pieces_log) + (parts ? up_to(out->n_pieces * parts, 4 << out->tails_log) : 0);
    return l2_copy_pages(out) <= L2_COPY_MOST_PAGES;
}

void launch_l2_copy(cudaStream_t stream, const struct dl2_copy *n, struct dweight w) {
    lay_out_near<<<dim3(n->n_pieces, n->n_tiles), THREADS, 0, stream>>>(*n, w);
}
