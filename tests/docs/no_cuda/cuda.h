/* What docs/hosts.md and its check use of the driver API, for machines without the toolkit's cuda.h. */
#ifndef RSSM_TESTS_DOCS_CUDA_H_
#define RSSM_TESTS_DOCS_CUDA_H_

#define CUDAAPI

typedef enum CUresult_enum { CUDA_SUCCESS = 0, CUDA_ERROR_SHARED_OBJECT_INIT_FAILED = 303 } CUresult;
typedef enum CUstreamCaptureMode_enum { CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1 } CUstreamCaptureMode;
typedef enum CUstream_flags_enum { CU_STREAM_NON_BLOCKING = 1 } CUstream_flags;
typedef struct CUstream_st *CUstream;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;

CUresult cuStreamCreate(CUstream *stream, unsigned flags);
CUresult cuStreamDestroy(CUstream stream);
CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode);
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags);
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream);
CUresult cuGraphExecDestroy(CUgraphExec exec);
CUresult cuGraphDestroy(CUgraph graph);

#endif
