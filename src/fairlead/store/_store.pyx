# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Rings and arenas in compiled code; the plain twins are `ring.py` and `arena.py`, the layout is docs/store.md.

Every shared word is read with acquire and written with release order; the two places where a process decides
to sleep use a full fence between its own flag and the other side's word.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

cdef extern from *:
    """
    #include <stdint.h>
    #include <fcntl.h>
    static inline uint64_t fl_load(const void* p) { return __atomic_load_n((const uint64_t*)p, __ATOMIC_ACQUIRE); }
    static inline void fl_store(void* p, uint64_t v) { __atomic_store_n((uint64_t*)p, v, __ATOMIC_RELEASE); }
    static inline uint32_t fl_load32(const void* p) { return __atomic_load_n((const uint32_t*)p, __ATOMIC_ACQUIRE); }
    static inline void fl_store32(void* p, uint32_t v) { __atomic_store_n((uint32_t*)p, v, __ATOMIC_RELEASE); }
    static inline void fl_fence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
    static inline int fl_cas(void* p, uint64_t old, uint64_t new_) {
        return __atomic_compare_exchange_n((uint64_t*)p, &old, new_, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    }
    static inline uint64_t fl_or(void* p, uint64_t v) { return __atomic_fetch_or((uint64_t*)p, v, __ATOMIC_ACQ_REL); }
    static inline uint64_t fl_swap(void* p, uint64_t v) { return __atomic_exchange_n((uint64_t*)p, v, __ATOMIC_ACQ_REL); }
    static inline int fl_count(uint64_t v) { return __builtin_popcountll(v); }
    static inline int fl_lowest(uint64_t v) { return __builtin_ctzll(v); }
    static inline int fl_allocate(int fd, uint64_t offset, uint64_t length) {
        return posix_fallocate(fd, (off_t)offset, (off_t)length);
    }
    """
    uint64_t fl_load(const void*) noexcept nogil
    void fl_store(void*, uint64_t) noexcept nogil
    uint32_t fl_load32(const void*) noexcept nogil
    void fl_store32(void*, uint32_t) noexcept nogil
    void fl_fence() noexcept nogil
    int fl_cas(void*, uint64_t, uint64_t) noexcept nogil
    uint64_t fl_or(void*, uint64_t) noexcept nogil
    uint64_t fl_swap(void*, uint64_t) noexcept nogil
    int fl_count(uint64_t) noexcept nogil
    int fl_lowest(uint64_t) noexcept nogil
    int fl_allocate(int, uint64_t, uint64_t) noexcept nogil

cdef enum:
    R_CAPACITY = 64
    R_ENTRIES_MAX = 72
    R_TAIL = 128
    R_PUSHED = 136
    R_HEAD = 192
    R_POPPED = 200
    R_SLEEPING = 256
    R_WANTING = 320
    R_DATA = 4096

    A_BLOCKS = 64
    A_COMMITTED = 72
    A_DIRECTORY = 4096
    BLOCK = 65536
    RUN_FIRST = 0x80000000
    RUN_INSIDE = 0x40000000

CLASS_SIZES = (128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 32704)

cdef int CLASSES = 16
cdef uint32_t class_size[17]
cdef uint8_t class_of[512]                    # by ceil(size / 64): the smallest class that holds it
cdef int _i, _c
class_size[0] = 0
for _i in range(16):
    class_size[_i + 1] = CLASS_SIZES[_i]
for _i in range(512):
    class_of[_i] = 0
    for _c in range(1, 17):
        if class_size[_c] >= <uint32_t>(_i * 64):
            class_of[_i] = _c
            break

cdef uint64_t NOWHERE = <uint64_t>0xFFFFFFFFFFFFFFFF
cdef uint64_t LIVE = <uint64_t>1 << 38
cdef uint64_t LISTED = <uint64_t>1 << 39      # free and on its owner's list
cdef uint64_t TOUCHES = <uint64_t>0xFFFFFFFF
cdef uint64_t GENERATION = <uint64_t>0xFFFFFF


cdef inline uint64_t* word_at(char* slot) noexcept nogil:
    return <uint64_t*>slot


cdef inline uint64_t round8(uint64_t size) noexcept nogil:
    return (size + 7) & ~<uint64_t>7


cdef class Producer:
    """The writing end of a ring. Writes beyond the published tail; `publish` shows it all at once."""

    def __cinit__(self, buffer, int lock_fd=-1):
        PyObject_GetBuffer(buffer, &self.view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        self.base = <char*>self.view.buf
        self.data = self.base + R_DATA
        self.capacity = fl_load(self.base + R_CAPACITY)
        self.entries_max = fl_load(self.base + R_ENTRIES_MAX)
        self.mask = self.capacity - 1
        self.tail = self.published = fl_load(self.base + R_TAIL)
        self.head_seen = fl_load(self.base + R_HEAD)
        self.counted = self.count_at_tail()
        fl_store(self.base + R_PUSHED, self.counted)

    def __dealloc__(self):
        PyBuffer_Release(&self.view)

    def count_at_tail(self):
        """Counted entries pushed so far: what the last entry says, or the consumer's total when all are popped."""
        cdef uint64_t position = self.head_seen
        cdef uint64_t counted = fl_load(self.base + R_POPPED)
        cdef char* entry
        cdef uint64_t left
        while position < self.tail:
            left = self.capacity - (position & self.mask)
            if left < ENTRY:
                position += left
                continue
            entry = self.data + (position & self.mask)
            if (<uint8_t*>entry)[4] != PAD:
                counted = (<uint64_t*>(entry + 8))[0]
            position += (<uint32_t*>entry)[0]
        return counted

    cdef char* reserve(self, uint64_t size, uint64_t keep_free) noexcept nogil:
        cdef uint64_t need = round8(size)
        cdef uint64_t left = self.capacity - (self.tail & self.mask)
        cdef uint64_t total = need
        cdef char* pad
        if left < need:
            total += left
        if self.tail + total + keep_free > self.head_seen + self.capacity:
            self.head_seen = fl_load(self.base + R_HEAD)
            if self.tail + total + keep_free > self.head_seen + self.capacity:
                return NULL
        if left < need:
            if left >= ENTRY:
                pad = self.data + (self.tail & self.mask)
                (<uint32_t*>pad)[0] = <uint32_t>left
                (<uint32_t*>pad)[1] = PAD
                (<uint64_t*>(pad + 8))[0] = self.counted
            self.tail += left
        return self.data + (self.tail & self.mask)

    cdef void commit(self, char* entry, uint64_t size, uint8_t kind, uint8_t flags) noexcept nogil:
        cdef uint64_t need = round8(size)
        if flags & COUNTED:
            self.counted += 1
        (<uint32_t*>entry)[0] = <uint32_t>need
        (<uint8_t*>entry)[4] = kind
        (<uint8_t*>entry)[5] = flags
        (<uint16_t*>(entry + 6))[0] = 0
        (<uint64_t*>(entry + 8))[0] = self.counted
        self.tail += need

    cdef bint publish_c(self) noexcept nogil:
        if self.tail == self.published:
            return False
        fl_store(self.base + R_PUSHED, self.counted)
        fl_store(self.base + R_TAIL, self.tail)
        self.published = self.tail
        fl_fence()
        if fl_load32(self.base + R_SLEEPING):
            fl_store32(self.base + R_SLEEPING, 0)
            return True
        return False

    cdef uint64_t waiting_c(self) noexcept nogil:
        return self.counted - fl_load(self.base + R_POPPED)

    cdef uint64_t room_c(self) noexcept nogil:
        self.head_seen = fl_load(self.base + R_HEAD)
        return self.capacity - (self.tail - self.head_seen)

    cdef void want_c(self) noexcept nogil:
        fl_store32(self.base + R_WANTING, 1)
        fl_fence()

    cdef void unwant_c(self) noexcept nogil:
        fl_store32(self.base + R_WANTING, 0)

    def push(self, int kind, int flags, bytes payload, uint64_t keep_free=0):
        """Write one entry beyond the published tail; False when there is no room."""
        cdef uint64_t size = ENTRY + len(payload)
        cdef char* entry = self.reserve(size, keep_free)
        if entry == NULL:
            return False
        memcpy(entry + ENTRY, <char*>payload, len(payload))
        self.commit(entry, size, kind, flags)
        return True

    def publish(self):
        """Let the consumer see what was pushed; True: it sleeps, its eventfd has to be written."""
        return self.publish_c()

    def rollback(self, uint64_t tail, uint64_t counted):
        """Set the published position anew: a starting router republishes what its commit record says."""
        self.tail = tail
        self.counted = counted
        self.published = tail
        fl_store(self.base + R_PUSHED, counted)
        fl_store(self.base + R_TAIL, tail)

    def waiting(self):
        return self.waiting_c()

    def room(self):
        return self.room_c()

    def want(self):
        self.want_c()

    def unwant(self):
        self.unwant_c()


cdef class Consumer:
    """The reading end of a ring. Peeks at a private cursor; `publish` gives back what was dealt with."""

    def __cinit__(self, buffer, int lock_fd=-1):
        PyObject_GetBuffer(buffer, &self.view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        self.base = <char*>self.view.buf
        self.data = self.base + R_DATA
        self.capacity = fl_load(self.base + R_CAPACITY)
        self.mask = self.capacity - 1
        self.cursor = fl_load(self.base + R_HEAD)
        self.counted = fl_load(self.base + R_POPPED)
        self.tail_seen = fl_load(self.base + R_TAIL)

    def __dealloc__(self):
        PyBuffer_Release(&self.view)

    cdef char* next_c(self) noexcept nogil:
        cdef char* entry
        cdef uint64_t left
        while True:
            if self.cursor == self.tail_seen:
                self.tail_seen = fl_load(self.base + R_TAIL)
                if self.cursor == self.tail_seen:
                    return NULL
            left = self.capacity - (self.cursor & self.mask)
            if left < ENTRY:
                self.cursor += left
                continue
            entry = self.data + (self.cursor & self.mask)
            if (<uint8_t*>entry)[4] == PAD:
                self.cursor += (<uint32_t*>entry)[0]
                continue
            return entry

    cdef void advance_c(self, char* entry) noexcept nogil:
        self.counted = (<uint64_t*>(entry + 8))[0]
        self.cursor += (<uint32_t*>entry)[0]

    cdef bint publish_c(self, uint64_t low) noexcept nogil:
        fl_store(self.base + R_POPPED, self.counted)
        fl_store(self.base + R_HEAD, self.cursor)
        fl_fence()
        if fl_load32(self.base + R_WANTING) and fl_load(self.base + R_PUSHED) <= self.counted + low:
            fl_store32(self.base + R_WANTING, 0)
            return True
        return False

    cdef bint owes_c(self, uint64_t low) noexcept nogil:
        return fl_load32(self.base + R_WANTING) and fl_load(self.base + R_PUSHED) <= self.counted + low

    cdef bint sleep_c(self) noexcept nogil:
        fl_store32(self.base + R_SLEEPING, 1)
        fl_fence()
        return self.next_c() == NULL

    cdef void awake_c(self) noexcept nogil:
        fl_store32(self.base + R_SLEEPING, 0)

    def next(self):
        """The entry at the cursor as (kind, flags, payload copy), or None; `advance` moves on."""
        cdef char* entry = self.next_c()
        if entry == NULL:
            return None
        cdef uint32_t size = (<uint32_t*>entry)[0]
        return (<uint8_t*>entry)[4], (<uint8_t*>entry)[5], entry[ENTRY:size]

    def advance(self):
        cdef char* entry = self.next_c()
        if entry != NULL:
            self.advance_c(entry)

    def publish(self, uint64_t low=0):
        """Give everything before the cursor back; True: the producer wanted room, write its eventfd."""
        return self.publish_c(low)

    def rollback(self, uint64_t head, uint64_t popped):
        """Set the consumed position anew from a commit record."""
        self.cursor = head
        self.counted = popped
        fl_store(self.base + R_POPPED, popped)
        fl_store(self.base + R_HEAD, head)

    def sleep(self):
        return self.sleep_c()

    def awake(self):
        self.awake_c()

    def empty(self):
        return self.next_c() == NULL


cdef class Arena:
    """Bodies and completion words. The owner allocates; any manager finishes; whoever finishes last frees."""

    def __cinit__(self, buffer, int fd=-1, bint owner=False, uint64_t step_bytes=4194304, int lock_fd=-1):
        PyObject_GetBuffer(buffer, &self.view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        self.base = <char*>self.view.buf
        self.index = (<uint32_t*>(self.base + 20))[0]
        self.blocks = fl_load(self.base + A_BLOCKS)
        self.directory = <uint32_t*>(self.base + A_DIRECTORY)
        cdef uint64_t at = (A_DIRECTORY + 4 * self.blocks + 63) & ~<uint64_t>63
        self.returned = <uint64_t*>(self.base + at)
        at = (at + 8 * ((self.blocks + 63) // 64) + 63) & ~<uint64_t>63
        self.generations = <uint32_t*>(self.base + at)
        at = (at + 4 * self.blocks + BLOCK - 1) & ~<uint64_t>(BLOCK - 1)
        self.first = self.base + at
        self.owner = owner
        self.fd = fd
        self.step_blocks = max(1, step_bytes // BLOCK)
        self.search_from = 0
        memset(self.free_head, 0, sizeof(self.free_head))
        self.free_count = <uint16_t*>calloc(self.blocks if owner else 1, sizeof(uint16_t))
        if self.free_count == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.free_count)
        PyBuffer_Release(&self.view)

    # -- the owner's side

    cdef void list_free(self, uint64_t offset, int size_class) noexcept nogil:
        # Only the owner changes a slot that is free; ring_position links the list.
        cdef char* slot = self.base + offset
        fl_store(slot, fl_load(slot) | LISTED)
        (<uint64_t*>(slot + 8))[0] = self.free_head[size_class]
        self.free_head[size_class] = offset
        self.free_count[(slot - self.first) // BLOCK] += 1

    cdef uint64_t take_blocks(self, uint64_t count) noexcept nogil:
        """The first of `count` free neighbouring blocks, or `blocks` when there are none; gives them memory if needed."""
        cdef uint64_t committed = fl_load(self.base + A_COMMITTED)
        cdef uint64_t at = self.search_from if count == 1 else 0
        cdef uint64_t run = 0
        cdef uint64_t want
        while at < committed:
            run = run + 1 if self.directory[at] == 0 else 0
            at += 1
            if run == count:
                if count == 1:
                    self.search_from = at
                return at - count
        if count == 1 and self.search_from:
            self.search_from = 0
            return self.take_blocks(1)
        # `run` free blocks lie at the end of what is committed; grow behind them.
        want = committed + (count - run)
        if want > self.blocks:
            return self.blocks
        want = committed + ((want - committed + self.step_blocks - 1) // self.step_blocks) * self.step_blocks
        if want > self.blocks:
            want = self.blocks
        if self.fd >= 0:
            if fl_allocate(self.fd, (self.first - self.base) + committed * BLOCK, (want - committed) * BLOCK) != 0:
                return self.blocks
        fl_store(self.base + A_COMMITTED, want)
        return committed - run

    cdef bint make_slab(self, int size_class) noexcept nogil:
        cdef uint64_t block = self.take_blocks(1)
        if block >= self.blocks:
            return False
        cdef char* start = self.first + block * BLOCK
        cdef uint32_t size = class_size[size_class]
        cdef uint64_t slots = (BLOCK - 64) // size
        cdef uint64_t i
        cdef char* slot
        cdef uint64_t generation = self.generations[block] & GENERATION
        for i in range(slots):
            slot = start + 64 + i * size
            fl_store(slot, generation << 40)
        self.free_count[block] = 0
        fl_store32(&self.directory[block], size_class)
        for i in range(slots):
            self.list_free((start + 64 + (slots - 1 - i) * size) - self.base, size_class)
        return True

    cdef bint collect(self, bint everything) noexcept nogil:
        """Take back what others freed: from blocks marked as returned, or from all of them."""
        cdef uint64_t words = (self.blocks + 63) // 64
        cdef uint64_t w, bits, block, i, slots, word
        cdef uint32_t kind, size
        cdef char* slot
        cdef bint found = False
        for w in range(words):
            bits = fl_load(&self.returned[w])
            if bits:
                bits = fl_swap(&self.returned[w], 0)
            if everything:
                bits = NOWHERE
            while bits:
                block = w * 64 + fl_lowest(bits)
                bits &= bits - 1
                if block >= self.blocks:
                    break
                kind = self.directory[block]
                if kind == 0 or kind == RUN_INSIDE:
                    continue
                if kind & RUN_FIRST:
                    if not fl_load(self.first + block * BLOCK + 64) & LIVE:
                        self.free_block_run(block)
                        found = True
                    continue
                size = class_size[kind]
                slots = (BLOCK - 64) // size
                for i in range(slots):
                    slot = self.first + block * BLOCK + 64 + i * size
                    word = fl_load(slot)
                    if not word & (LIVE | LISTED):
                        self.list_free(slot - self.base, kind)
                        found = True
        return found

    cdef void free_block_run(self, uint64_t block) noexcept nogil:
        cdef uint64_t count = self.directory[block] & 0x3FFFFFFF
        cdef uint64_t i
        self.generations[block] = <uint32_t>((fl_load(self.first + block * BLOCK + 64) >> 40) & GENERATION)
        for i in range(1, count):
            self.directory[block + i] = 0
        fl_store32(&self.directory[block], 0)

    cdef bint reclaim(self) noexcept nogil:
        """Slabs that are free to the last slot become free blocks again."""
        cdef int c
        cdef uint64_t offset, following, block, kept, generation, i
        cdef bint found = False
        for c in range(1, CLASSES + 1):
            offset = self.free_head[c]
            kept = 0
            while offset:
                following = (<uint64_t*>(self.base + offset + 8))[0]
                block = (self.base + offset - self.first) // BLOCK
                if self.free_count[block] < (BLOCK - 64) // class_size[c]:
                    (<uint64_t*>(self.base + offset + 8))[0] = kept
                    kept = offset
                offset = following
            self.free_head[c] = kept
        for block in range(self.blocks):
            c = <int>self.directory[block]
            if 1 <= c <= CLASSES and self.free_count[block] == (BLOCK - 64) // class_size[c]:
                generation = 0
                for i in range((BLOCK - 64) // class_size[c]):
                    offset = (fl_load(self.first + block * BLOCK + 64 + i * class_size[c]) >> 40) & GENERATION
                    if offset > generation:
                        generation = offset
                self.generations[block] = <uint32_t>((generation + 1) & GENERATION)
                self.free_count[block] = 0
                fl_store32(&self.directory[block], 0)
                found = True
        return found

    cdef uint64_t alloc_c(self, uint64_t body_length, uint32_t connection, uint64_t uid) noexcept nogil:
        cdef uint64_t size = SLOT + body_length
        cdef uint64_t offset, block, count, i, word
        cdef int c
        cdef char* slot
        if size <= 32704:
            c = class_of[(size + 63) // 64]
            if self.free_head[c] == 0 and not self.collect(False) or self.free_head[c] == 0:
                if not self.make_slab(c):
                    self.collect(True)
                    if self.free_head[c] == 0:
                        if not self.reclaim() or not self.make_slab(c):
                            return 0
            offset = self.free_head[c]
            slot = self.base + offset
            self.free_head[c] = (<uint64_t*>(slot + 8))[0]
            self.free_count[(slot - self.first) // BLOCK] -= 1
            word = fl_load(slot) & ~LISTED
        else:
            count = (size + 64 + BLOCK - 1) // BLOCK
            block = self.take_blocks(count)
            if block >= self.blocks:
                self.collect(True)
                self.reclaim()
                block = self.take_blocks(count)
                if block >= self.blocks:
                    return 0
            slot = self.first + block * BLOCK + 64
            offset = slot - self.base
            for i in range(1, count):
                self.directory[block + i] = RUN_INSIDE
            word = (<uint64_t>(self.generations[block] & GENERATION)) << 40
            fl_store(slot, word)
            fl_store32(&self.directory[block], <uint32_t>(RUN_FIRST + count))
        (<uint64_t*>(slot + 8))[0] = NOWHERE
        (<uint32_t*>(slot + 16))[0] = <uint32_t>body_length
        (<uint32_t*>(slot + 20))[0] = connection
        (<uint64_t*>(slot + 24))[0] = uid
        word = (word & (GENERATION << 40)) | LIVE
        fl_store(slot, word)
        return (<uint64_t>self.index << 56) | ((offset >> 6) << 24) | (word >> 40)

    cdef void refer_c(self, uint64_t handle, uint64_t ring_position) noexcept nogil:
        fl_store(self.base + (((handle >> 24) & TOUCHES) << 6) + 8, ring_position)

    cdef void abandon_c(self, uint64_t handle) noexcept nogil:
        self.finish_c(handle, 0, 1)

    # -- everybody's side

    cdef char* body_c(self, uint64_t handle) noexcept nogil:
        cdef char* slot = self.base + (((handle >> 24) & TOUCHES) << 6)
        cdef uint64_t word = fl_load(slot)
        if (word >> 40) != (handle & GENERATION) or not word & LIVE:
            return NULL
        return slot + SLOT

    cdef int finish_c(self, uint64_t handle, int touch, int limit) noexcept nogil:
        cdef uint64_t offset = ((handle >> 24) & TOUCHES) << 6
        cdef char* slot = self.base + offset
        cdef uint64_t old, new, done, known, block
        cdef uint32_t kind
        while True:
            old = fl_load(slot)
            if (old >> 40) != (handle & GENERATION) or not old & LIVE:
                return FINISH_STALE
            if old & (<uint64_t>1 << touch):
                return FINISH_STALE
            new = old | (<uint64_t>1 << touch) | (<uint64_t>(limit & 63) << 32)
            known = (new >> 32) & 63
            done = fl_count(new & TOUCHES)
            if known and done > known:
                return FINISH_FAULT
            if known and done == known:
                new = (((old >> 40) + 1) & GENERATION) << 40
            if fl_cas(slot, old, new):
                break
        if not (known and done == known):
            return FINISH_COUNTED
        block = (slot - self.first) // BLOCK
        if self.owner:
            kind = self.directory[block]
            if kind & RUN_FIRST:
                self.free_block_run(block)
            else:
                self.list_free(offset, kind)
        else:
            fl_or(&self.returned[block // 64], <uint64_t>1 << (block % 64))
        return FINISH_FREED

    cdef void set_limit_c(self, uint64_t handle, int limit) noexcept nogil:
        cdef char* slot = self.base + (((handle >> 24) & TOUCHES) << 6)
        cdef uint64_t old
        while True:
            old = fl_load(slot)
            if (old >> 40) != (handle & GENERATION) or not old & LIVE:
                return
            if fl_cas(slot, old, old | (<uint64_t>(limit & 63) << 32)):
                return

    # -- from Python

    def alloc(self, uint64_t body_length, uint32_t connection=0, uint64_t uid=0):
        return self.alloc_c(body_length, connection, uid)

    def refer(self, uint64_t handle, uint64_t ring_position):
        self.refer_c(handle, ring_position)

    def abandon(self, uint64_t handle):
        self.abandon_c(handle)

    def write(self, uint64_t handle, const uint8_t[::1] data, uint64_t at=0):
        cdef char* body = self.body_c(handle)
        if body == NULL:
            return False
        if data.shape[0]:
            memcpy(body + at, &data[0], data.shape[0])
        return True

    def read(self, uint64_t handle):
        """The body as bytes, or None when the handle is stale."""
        cdef char* body = self.body_c(handle)
        if body == NULL:
            return None
        return body[:(<uint32_t*>(body - SLOT + 16))[0]]

    def finish(self, uint64_t handle, int touch, int limit):
        return self.finish_c(handle, touch, limit)

    def set_limit(self, uint64_t handle, int limit):
        self.set_limit_c(handle, limit)

    def recover(self, uint64_t tail):
        """A successor's start: free what the router never heard of, list what is free. Returns what was given up."""
        cdef uint64_t block, i, slots, size, word
        cdef uint32_t kind
        cdef char* slot
        given_up = []
        memset(self.free_head, 0, sizeof(self.free_head))
        memset(self.free_count, 0, self.blocks * sizeof(uint16_t))
        for block in range(fl_load(self.base + A_COMMITTED)):
            kind = self.directory[block]
            if kind == 0 or kind == RUN_INSIDE:
                continue
            if kind & RUN_FIRST:
                slot = self.first + block * BLOCK + 64
                word = fl_load(slot)
                if word & LIVE and (<uint64_t*>(slot + 8))[0] >= tail:
                    given_up.append(self.facts(slot))
                    fl_store(slot, (((word >> 40) + 1) & GENERATION) << 40)
                    word = 0
                if not word & LIVE:
                    self.free_block_run(block)
                continue
            size = class_size[kind]
            slots = (BLOCK - 64) // size
            for i in range(slots):
                slot = self.first + block * BLOCK + 64 + i * size
                word = fl_load(slot)
                if word & LIVE and (<uint64_t*>(slot + 8))[0] >= tail:
                    given_up.append(self.facts(slot))
                    fl_store(slot, (((word >> 40) + 1) & GENERATION) << 40)
                    word = 0
                if not word & LIVE:
                    self.list_free(slot - self.base, kind)
        self.free_orphan_blocks()
        return given_up

    def free_orphan_blocks(self):
        """Blocks inside a run whose first block was not yet written when the owner died."""
        cdef uint64_t block = 0
        cdef uint64_t end = fl_load(self.base + A_COMMITTED)
        while block < end:
            if self.directory[block] & RUN_FIRST:
                block += self.directory[block] & 0x3FFFFFFF
                continue
            if self.directory[block] == RUN_INSIDE:
                self.directory[block] = 0
            block += 1

    cdef object facts(self, char* slot):
        cdef uint64_t word = fl_load(slot)
        handle = (<uint64_t>self.index << 56) | (<uint64_t>(slot - self.base) >> 6 << 24) | (word >> 40)
        return {
            "handle": handle, "uid": (<uint64_t*>(slot + 24))[0], "index": (<uint32_t*>(slot + 20))[0],
            "bytes": (<uint32_t*>(slot + 16))[0], "relinquish_count": fl_count(word & TOUCHES),
            "relinquish_limit": ((word >> 32) & 63) or -1, "live": bool(word & LIVE),
        }

    def census(self, bint details=False):
        """(live slots, their body bytes), read without changing anything; with details a list of the slots too."""
        cdef uint64_t block, i, slots, size, word, count = 0, total = 0
        cdef uint32_t kind
        cdef char* slot
        found = []
        for block in range(fl_load(self.base + A_COMMITTED)):
            kind = fl_load32(&self.directory[block])
            if kind == 0 or kind == RUN_INSIDE:
                continue
            size = BLOCK if kind & RUN_FIRST else class_size[kind]
            slots = 1 if kind & RUN_FIRST else (BLOCK - 64) // size
            for i in range(slots):
                slot = self.first + block * BLOCK + 64 + i * size
                word = fl_load(slot)
                if word & LIVE:
                    count += 1
                    total += (<uint32_t*>(slot + 16))[0]
                    if details:
                        found.append(self.facts(slot))
        return (count, total, found) if details else (count, total)

    def describe(self, uint64_t handle):
        """Counts and limit of one handle, or None when it is not stored any more."""
        cdef char* slot = self.base + (((handle >> 24) & TOUCHES) << 6)
        cdef uint64_t word = fl_load(slot)
        if (word >> 40) != (handle & GENERATION) or not word & LIVE:
            return None
        return self.facts(slot)
