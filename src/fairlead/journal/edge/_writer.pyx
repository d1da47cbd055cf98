# cython: language_level=3
"""The thread that writes, syncs and reads for a journal and never asks for the interpreter's lock.

The plain twin is `writer.py`. Everything the thread touches is C: a list of jobs under a mutex, a semaphore that
counts them, and an eventfd by which it says that something is done. Nobody is woken while the mutex is held.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc

cdef extern from *:
    """
    #include <errno.h>
    #include <pthread.h>
    #include <semaphore.h>
    #include <stdint.h>
    #include <stdlib.h>
    #include <signal.h>
    #include <time.h>
    #include <unistd.h>

    enum { FL_WRITE = 1, FL_READ = 2, FL_SPANS = 12 };

    /* How long syncs took: at most so many microseconds, as in `sync_times.py`; the last span has no end. */
    static const uint64_t fl_spans_us[FL_SPANS - 1] =
        {500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};

    typedef struct fl_job {
        struct fl_job* next;
        int what, fd, error, sync;
        uint64_t ticket, offset;
        size_t size, moved;
        char* data;
        Py_buffer view;
    } fl_job;

    typedef struct {
        pthread_t thread;
        pthread_mutex_t lock;
        sem_t waiting;                 /* jobs not begun, and the end */
        fl_job *first, *last;          /* to be done */
        fl_job *done_first, *done_last;
        int started, closing, event;
        /* faults, for tests */
        uint64_t sync_delay_us, fail_sync_at, fail_write_at, write_max, syncs, writes;
        int sync_errno, write_errno;
        /* under the lock */
        uint64_t timed, last_ns, total_ns, spans[FL_SPANS];
    } fl_writer;

    static void fl_pause(uint64_t us) {
        struct timespec rest = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
        while (nanosleep(&rest, &rest) != 0 && errno == EINTR) {}
    }

    static uint64_t fl_now_ns(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    }

    static void fl_took(fl_writer* w, uint64_t ns) {
        int span = 0;
        while (span < FL_SPANS - 1 && ns > fl_spans_us[span] * 1000) span++;
        pthread_mutex_lock(&w->lock);
        w->timed++;
        w->last_ns = ns;
        w->total_ns += ns;
        w->spans[span]++;
        pthread_mutex_unlock(&w->lock);
    }

    static void fl_times(fl_writer* w, uint64_t* out) {
        pthread_mutex_lock(&w->lock);
        out[0] = w->timed;
        out[1] = w->last_ns;
        out[2] = w->total_ns;
        for (int span = 0; span < FL_SPANS; span++) out[3 + span] = w->spans[span];
        pthread_mutex_unlock(&w->lock);
    }

    static int fl_write_all(fl_writer* w, fl_job* job) {
        while (job->moved < job->size) {
            size_t want = job->size - job->moved;
            if (w->write_max && want > w->write_max) want = w->write_max;
            if (++w->writes == w->fail_write_at) return w->write_errno;
            ssize_t n = pwrite(job->fd, job->data + job->moved, want, (off_t)(job->offset + job->moved));
            if (n < 0) {
                if (errno == EINTR) continue;
                return errno;
            }
            if (n == 0) return EIO;
            job->moved += (size_t)n;
        }
        if (!job->sync) return 0;
        uint64_t began_ns = fl_now_ns();
        if (w->sync_delay_us) fl_pause(w->sync_delay_us);
        if (++w->syncs == w->fail_sync_at) return -w->sync_errno;
        /* Not repeated after an error, EINTR included: the kernel may have dropped what it could not write. */
        if (fdatasync(job->fd) != 0) return -errno;
        fl_took(w, fl_now_ns() - began_ns);
        return 0;
    }

    static int fl_read_all(fl_job* job) {
        while (job->moved < job->size) {
            ssize_t n = pread(job->fd, job->data + job->moved, job->size - job->moved, (off_t)(job->offset + job->moved));
            if (n < 0) {
                if (errno == EINTR) continue;
                return errno;
            }
            if (n == 0) break;
            job->moved += (size_t)n;
        }
        return 0;
    }

    static void* fl_work(void* argument) {
        fl_writer* w = (fl_writer*)argument;
        for (;;) {
            while (sem_wait(&w->waiting) != 0) {}
            pthread_mutex_lock(&w->lock);
            fl_job* job = w->first;
            if (job != NULL) {
                w->first = job->next;
                if (w->first == NULL) w->last = NULL;
            }
            pthread_mutex_unlock(&w->lock);
            if (job == NULL) return NULL;   /* the end was counted behind all jobs */
            job->error = job->what == FL_WRITE ? fl_write_all(w, job) : fl_read_all(job);
            pthread_mutex_lock(&w->lock);
            job->next = NULL;
            if (w->done_last) w->done_last->next = job; else w->done_first = job;
            w->done_last = job;
            pthread_mutex_unlock(&w->lock);
            uint64_t one = 1;
            if (w->event >= 0) while (write(w->event, &one, 8) < 0 && errno == EINTR) {}
        }
    }

    static int fl_start(fl_writer* w) {
        sigset_t all, before;
        pthread_mutex_init(&w->lock, NULL);
        sem_init(&w->waiting, 0, 0);
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);   /* signals are for the interpreter's threads */
        int error = pthread_create(&w->thread, NULL, fl_work, w);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        w->started = error == 0;
        return error;
    }

    static void fl_push(fl_writer* w, fl_job* job) {
        pthread_mutex_lock(&w->lock);
        if (w->last) w->last->next = job; else w->first = job;
        w->last = job;
        pthread_mutex_unlock(&w->lock);
        sem_post(&w->waiting);
    }

    static fl_job* fl_take_done(fl_writer* w) {
        pthread_mutex_lock(&w->lock);
        fl_job* job = w->done_first;
        w->done_first = w->done_last = NULL;
        pthread_mutex_unlock(&w->lock);
        return job;
    }

    static void fl_stop(fl_writer* w) {
        w->closing = 1;
        sem_post(&w->waiting);
        pthread_join(w->thread, NULL);
    }
    """
    enum:
        FL_WRITE
        FL_READ
        FL_SPANS
    ctypedef struct fl_job:
        fl_job* next
        int what, fd, error, sync
        uint64_t ticket, offset
        size_t size, moved
        char* data
        Py_buffer view
    ctypedef struct fl_writer:
        int started, closing, event
        uint64_t sync_delay_us, fail_sync_at, fail_write_at, write_max
        int sync_errno, write_errno
    int fl_start(fl_writer*)
    void fl_push(fl_writer*, fl_job*) nogil
    fl_job* fl_take_done(fl_writer*) nogil
    void fl_stop(fl_writer*) nogil
    void fl_times(fl_writer*, uint64_t*) nogil


cdef class Writer:
    """One thread and its jobs, done one after the other. `event` is an eventfd of the caller's."""

    cdef fl_writer* c

    def __cinit__(self, int event, faults=None, files=None):
        self.c = <fl_writer*>calloc(1, sizeof(fl_writer))
        if self.c == NULL:
            raise MemoryError
        self.c.event = event
        if faults is not None:
            self.c.sync_delay_us = int(faults.sync_delay_ms * 1000)
            self.c.fail_sync_at = faults.fail_sync_at
            self.c.fail_write_at = faults.fail_write_at
            self.c.write_max = faults.write_max
            self.c.sync_errno = faults.sync_errno
            self.c.write_errno = faults.write_errno
        cdef int error = fl_start(self.c)
        if error:
            raise OSError(error, "no thread to write with")

    def __dealloc__(self):
        if self.c != NULL:
            if self.c.started and not self.c.closing:
                with nogil:
                    fl_stop(self.c)
            self.discard()
            free(self.c)

    cdef discard(self):
        cdef fl_job* job = fl_take_done(self.c)
        cdef fl_job* following
        while job != NULL:
            following = job.next
            self.release(job)
            job = following

    cdef release(self, fl_job* job):
        if job.what == FL_WRITE:
            PyBuffer_Release(&job.view)
        else:
            free(job.data)
        free(job)

    def write(self, uint64_t ticket, int fd, uint64_t offset, data, bint sync=True):
        """Write all of the data there and sync the file; the data must not change before it is told of."""
        if self.c.closing:
            raise ValueError("the writer is closed")
        cdef fl_job* job = <fl_job*>calloc(1, sizeof(fl_job))
        if job == NULL:
            raise MemoryError
        try:
            PyObject_GetBuffer(data, &job.view, PyBUF_SIMPLE)
        except BaseException:
            free(job)
            raise
        job.what = FL_WRITE
        job.fd = fd
        job.sync = sync
        job.ticket = ticket
        job.offset = offset
        job.size = job.view.len
        job.data = <char*>job.view.buf
        fl_push(self.c, job)

    def read(self, uint64_t ticket, int fd, uint64_t offset, size_t size):
        """Fetch bytes; fewer come if the file ends."""
        if self.c.closing:
            raise ValueError("the writer is closed")
        cdef fl_job* job = <fl_job*>calloc(1, sizeof(fl_job))
        if job == NULL:
            raise MemoryError
        job.data = <char*>malloc(size or 1)
        if job.data == NULL:
            free(job)
            raise MemoryError
        job.what = FL_READ
        job.fd = fd
        job.ticket = ticket
        job.offset = offset
        job.size = size
        fl_push(self.c, job)

    def finished(self):
        """What is done since the last call: (ticket, errno or 0, the bytes read), in the order asked.

        The errno of a failed sync is negative: what was written before it may be lost without another word.
        """
        cdef fl_job* job = fl_take_done(self.c)
        cdef fl_job* following
        done = []
        while job != NULL:
            following = job.next
            data = PyBytes_FromStringAndSize(job.data, job.moved) if job.what == FL_READ and not job.error else None
            done.append((job.ticket, job.error, data))
            self.release(job)
            job = following
        return done

    def times(self):
        """How long syncs took, as numbers for a `SyncTimes`: how many, the newest, all, then by span."""
        cdef uint64_t out[3 + FL_SPANS]
        fl_times(self.c, out)
        return [out[at] for at in range(3 + FL_SPANS)]

    def close(self):
        """Do what was asked so far, then end the thread. `finished` still tells of it."""
        if not self.c.closing:
            with nogil:
                fl_stop(self.c)
