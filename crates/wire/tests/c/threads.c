/* Four threads write kernels under names of their own and one that they share, each record's fields
   following from its number, while another one makes children. For sanitizers. */
#include "gpuwhy.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static void *storm(void *of)
{
    uint64_t i;
    (void)of;
    for (i = 1; i <= 5000; i++) {
        gpuwhy_kernel("storm", (uint16_t)i, (uint32_t)(i * 3), i, i * 5, i * 5 + i * 7);
        if (i % 1000 == 0)
            gpuwhy_kernel("storm", (uint16_t)i, (uint32_t)(i * 3), i, i * 5, i * 5 + i * 7);
    }
    return 0;
}

int main(void)
{
    pthread_t threads[4];
    int i, status = 0, failed = 0;
    for (i = 0; i < 4; i++)
        if (pthread_create(&threads[i], 0, storm, 0))
            return 1;
    for (i = 0; i < 3; i++) {
        pid_t child = fork();
        if (child == 0) {
            gpuwhy_kernel("storm", 1, 3, 1, 5, 12);
            _exit(0);
        }
        if (child < 0 || waitpid(child, &status, 0) != child || status)
            failed = 1;
    }
    for (i = 0; i < 4; i++)
        pthread_join(threads[i], 0);
    return failed;
}
