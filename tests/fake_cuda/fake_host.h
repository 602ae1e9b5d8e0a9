/* Where fake_cuda.c meets fake_host.c. */
#ifndef RSSM_TESTS_FAKE_HOST_H_
#define RSSM_TESTS_FAKE_HOST_H_

/* Until the function that begins with it returns, no other thread is in the driver. */
#define ALONE __attribute__((cleanup(fake_leave), unused)) const int alone = fake_enter()
int fake_enter(void);
void fake_leave(const int *entered);

/* Called for every launch and for every wait for a stream, of a library that has fake_host.c in it. */
void fake_host_launch(const char *kernel, void *stream, void **parameters) __attribute__((weak));
void fake_host_waited(void *stream) __attribute__((weak));

/* Non-zero between the begin and the end of a capture by this thread, when nothing may be waited for. */
int fake_host_captures(void) __attribute__((weak));

#endif
