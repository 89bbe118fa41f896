/* confine.h - a process gives up everything that a decoder does not need.
 *
 * After pe_confine it has one socket, computes, and maps memory that it was handed. It cannot open
 * files, connect, start processes or write code: limits on memory, time, files and processes
 * everywhere; on Linux no new privileges and a list of allowed system calls (all others fail with
 * EPERM, those of another architecture end the process); on macOS the sandbox "pure computation".
 *
 * Sanitizers need a few more calls for their reports and map terabytes of addresses. Builds with
 * one get those calls and no limit on addresses; the list is in confine.c. */
#ifndef PE_CONFINE_H
#define PE_CONFINE_H

#include "runtime/base.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PE_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define PE_SANITIZED 1
#endif
#endif
#ifndef PE_SANITIZED
#define PE_SANITIZED 0
#endif

/* Closes all descriptors above 2, then as above. `memory`: bytes of addresses that may be mapped.
 * Cannot be undone. An error means that the process must not go on. */
pe_status pe_confine(uint64_t memory, pe_error *err);

/* Tries what must not work: opening a file, a socket, a process, memory that can be executed. The
 * names of those that did work go to text; PE_OK: none. */
pe_status pe_confine_try(pe_error *err);

#endif
