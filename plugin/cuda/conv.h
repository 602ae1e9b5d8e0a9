/* How the short convolution is launched (conv.cu). */
#ifndef RSSM_CUDA_CONV_H_
#define RSSM_CUDA_CONV_H_

enum {
    RSSM_CUDA_CONV_TAPS = 8,       /* up to this width a channel's weights stay in registers  */
    RSSM_CUDA_CONV_THREADS = 128,  /* channels of a block, one a thread, while ...            */
    RSSM_CUDA_CONV_SHARED = 49152, /* ... their rings fit here; else fewer                    */
    RSSM_CUDA_CONV4_THREADS = 64,  /* of a block of rssm_conv4, and ...                       */
    RSSM_CUDA_CONV4_SHARED = 48,   /* ... bytes of each of them                               */
    RSSM_CUDA_CONV4_AHEAD = 1024,  /* blocks that ask for their rings before their turn       */

    /* rssm_conv_pairs: rows on their way and at hand, bytes before the first of them, threads at most and blocks of so many
     * on a multiprocessor. */
    RSSM_CUDA_CONV_STAGES = 4,
    RSSM_CUDA_CONV_HEAD = 256,
    RSSM_CUDA_CONV_PAIR_THREADS = 256,
    RSSM_CUDA_CONV_PAIR_BLOCKS = 4
};

#endif
