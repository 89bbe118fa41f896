/* confine.c - see confine.h. */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include "runtime/image/confine.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__linux__)
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

/* ---- limits ---------------------------------------------------------------------------------- */

static bool limit(int what, uint64_t most) {
  struct rlimit now;
  if (getrlimit(what, &now)) return false;
  rlim_t value = (rlim_t)most;
  if (now.rlim_max != RLIM_INFINITY && now.rlim_max < value) value = now.rlim_max;
  struct rlimit next = {value, value};
  return !setrlimit(what, &next);
}

static pe_status set_limits(uint64_t memory, pe_error *err) {
  enum { CPU_S = 600, FILES = 16 }; /* the program replaces a child long before; see decoder.c */
  bool good = limit(RLIMIT_CORE, 0) && limit(RLIMIT_CPU, CPU_S) && limit(RLIMIT_NOFILE, FILES) &&
              (PE_SANITIZED || limit(RLIMIT_FSIZE, 0));
#if defined(__linux__)
  if (!PE_SANITIZED) good = good && limit(RLIMIT_AS, memory) && limit(RLIMIT_NPROC, 0);
#else
  (void)memory; /* macOS accepts RLIMIT_AS and ignores it; decode.c has a budget of its own */
#endif
  return good ? PE_OK : pe_fail(err, PE_EIO, "cannot set limits: %s", strerror(errno));
}

static void close_above(int last) {
#if defined(__linux__) && defined(SYS_close_range)
  if (!syscall(SYS_close_range, (unsigned)last + 1, ~0u, 0)) return;
#endif
  long most = sysconf(_SC_OPEN_MAX);
  if (most < 0 || most > 65536) most = 65536;
  for (int fd = last + 1; fd < most; fd++) close(fd);
}

/* ---- system calls ---------------------------------------------------------------------------- */

#if defined(__linux__) && defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__linux__) && defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

#if defined(ARCHITECTURE)

static const int allowed[] = {
    SYS_read,          SYS_recvmsg,   SYS_sendmsg,         SYS_close,        SYS_munmap,
    SYS_mremap,        SYS_brk,       SYS_madvise,         SYS_futex,        SYS_getrandom,
    SYS_clock_gettime, SYS_exit,      SYS_exit_group,      SYS_rt_sigreturn, SYS_restart_syscall,
    SYS_getpid,        SYS_gettid,
#if PE_SANITIZED
    SYS_write,         SYS_mprotect,  SYS_sigaltstack,     SYS_rt_sigaction, SYS_rt_sigprocmask,
    SYS_sched_yield,   SYS_nanosleep, SYS_clock_nanosleep, SYS_tgkill,       SYS_prctl,
#endif
};

#define FIELD(name) ((uint32_t)offsetof(struct seccomp_data, name))
#define RETURN(what) BPF_STMT(BPF_RET | BPF_K, what)
#define LOAD(at) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at)
#define UNLESS(op, value, skip) BPF_JUMP(BPF_JMP | op | BPF_K, value, 0, skip)

static pe_status filter_calls(pe_error *err) {
  enum { COUNT = sizeof allowed / sizeof *allowed };
  const uint32_t refuse = SECCOMP_RET_ERRNO | (EPERM & SECCOMP_RET_DATA);
  struct sock_filter program[16 + 2 * COUNT] = {
      LOAD(FIELD(arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0),
      RETURN(SECCOMP_RET_KILL_PROCESS),
      LOAD(FIELD(nr)),
      /* Numbers above this are the x32 calls of x86-64; other processors have none so large. */
      UNLESS(BPF_JGE, 0x40000000, 1),
      RETURN(SECCOMP_RET_KILL_PROCESS),
      /* Memory, but none that can be executed. */
      UNLESS(BPF_JEQ, SYS_mmap, 4),
      LOAD(FIELD(args[2])),
      UNLESS(BPF_JSET, PROT_EXEC, 1),
      RETURN(refuse),
      RETURN(SECCOMP_RET_ALLOW),
  };
  unsigned short n = 11;
  for (int i = 0; i < COUNT; i++) {
    program[n++] = (struct sock_filter)UNLESS(BPF_JEQ, (uint32_t)allowed[i], 1);
    program[n++] = (struct sock_filter)RETURN(SECCOMP_RET_ALLOW);
  }
  program[n++] = (struct sock_filter)RETURN(refuse);
  struct sock_fprog filter = {n, program};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0))
    return pe_fail(err, PE_EIO, "cannot limit system calls: %s", strerror(errno));
  return PE_OK;
}
#elif defined(__APPLE__)
/* Declared here: the header calls it deprecated, though it has no successor for programs, and a
 * compiler that is not Apple's lacks it. */
int sandbox_init(const char *profile, uint64_t flags, char **why);
extern const char kSBXProfilePureComputation[];
enum { SANDBOX_NAMED = 1 };

static pe_status filter_calls(pe_error *err) {
  char *why = NULL;
  int rc = sandbox_init(kSBXProfilePureComputation, SANDBOX_NAMED, &why);
  return rc ? pe_fail(err, PE_EIO, "cannot enter the sandbox: %s", why ? why : "") : PE_OK;
}
#else
static pe_status filter_calls(pe_error *err) {
  return pe_fail(err, PE_EUNSUPPORTED, "this system has no confinement that perigee knows");
}
#endif

pe_status pe_confine(uint64_t memory, pe_error *err) {
  close_above(STDERR_FILENO);
  pe_status rc = set_limits(memory, err);
  return rc ? rc : filter_calls(err);
}

/* ---- trying it ------------------------------------------------------------------------------- */

pe_status pe_confine_try(pe_error *err) {
  char worked[128] = "";
  int fd = open("/dev/null", O_RDONLY);
  if (fd >= 0) strcat(worked, " open");
  if (open("/tmp/perigee-escape", O_WRONLY | O_CREAT, 0600) >= 0) strcat(worked, " create");
  if (socket(AF_INET, SOCK_STREAM, 0) >= 0) strcat(worked, " socket");
  pid_t pid = fork();
  if (pid == 0) _exit(0);
  if (pid > 0) strcat(worked, " fork");
  char *const arguments[] = {"true", NULL};
  execve("/bin/true", arguments, arguments + 1); /* ends this process if it works */
  void *p = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANON, -1, 0);
  if (p != MAP_FAILED && !PE_SANITIZED) strcat(worked, " executable memory");
  if (!kill(getppid(), 0)) strcat(worked, " kill");
  return worked[0] ? pe_fail(err, PE_EIO, "allowed:%s", worked) : PE_OK;
}
