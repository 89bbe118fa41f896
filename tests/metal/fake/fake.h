/* fake.h - how tests control and question the fake Metal. The functions are exported by the shared
 * object; a test finds them with dlsym. */
#ifndef FAKE_H
#define FAKE_H

typedef enum fake_failure { /* of a command buffer; all other calls just return nil */
                            FAKE_FAIL_INTERNAL = 1, /* MTLCommandBufferError: internal, */
                            FAKE_FAIL_MEMORY = 8,   /* out of memory, */
                            FAKE_FAIL_REMOVED =
                                11 /* device removed: everything after it fails too */
} fake_failure;

/* Lets the n-th call that may fail from now on fail, once (0: none), and repairs the device. */
void fake_fail_at(long n, fake_failure how);
long fake_calls(void);      /* that may fail, since then */
long fake_complaints(void); /* so far */
long fake_forgive(void);    /* forgets them, and says how many they were: a test wanted them */
long fake_living(void);     /* objects that are not released */
/* What the device says about itself; 0: the default. Set before it is opened. */
void fake_set_most_bytes(unsigned long bytes);
void fake_set_macos(int version); /* 14, 15 (the default) or 26 */
long fake_dispatches(void);       /* run so far */
long fake_barriers(void);         /* encoded so far */
long fake_encoded(void);          /* dispatches, run or not */
long fake_in_flight(void);        /* command buffers that are committed and not done */
/* A GPU that is slow: this many of the next waits for an event run into their limit of time. */
void fake_set_late(long waits);

#endif
