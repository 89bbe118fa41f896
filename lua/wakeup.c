#include "lua/wakeup.h"

#include <fcntl.h>
#include <unistd.h>

bool pe_wakeup_open(int pair[2]) {
  if (pipe(pair)) return false;
  for (int i = 0; i < 2; i++) {
    fcntl(pair[i], F_SETFL, O_NONBLOCK);
    fcntl(pair[i], F_SETFD, FD_CLOEXEC);
  }
  return true;
}

void pe_wakeup_close(int pair[2]) {
  close(pair[0]);
  close(pair[1]);
}

void pe_wakeup(void *end) {
  ssize_t n = write(*(const int *)end, "!", 1);
  (void)n; /* a full pipe wakes as well as an empty one */
}
