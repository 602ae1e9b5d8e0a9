/* How the short convolution is launched (conv.cu). */
#ifndef RSSM_CUDA_CONV_H_
#define RSSM_CUDA_CONV_H_

enum {
    RSSM_CUDA_CONV_TAPS = 8,       /* up to this width a channel's weights stay in registers  */
    RSSM_CUDA_CONV_THREADS = 128,  /* channels of a block, one a thread, while ...            */
    RSSM_CUDA_CONV_SHARED = 49152, /* ... their rings fit here; else fewer                    */
    RSSM_CUDA_CONV4_CHANNELS = 8   /* per thread of rssm_conv4                                */
};

#endif
