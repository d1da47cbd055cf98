# What the manager's and the router's compiled loops share: rings and arenas over mapped segments (docs/store.md).
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    COUNTED = 1
    ROUND = 2
    PAD = 255
    ENTRY = 16                 # bytes before an entry's payload
    SLOT = 32                  # bytes before a slot's body

cdef enum:                     # what finish_c answers
    FINISH_COUNTED = 0
    FINISH_FREED = 1
    FINISH_STALE = 2           # counted before, or another generation: nothing was changed
    FINISH_FAULT = 3           # more touches than the limit: an accounting fault

cdef class Producer:
    cdef Py_buffer view
    cdef char* base
    cdef char* data
    cdef readonly uint64_t capacity
    cdef readonly uint64_t entries_max
    cdef uint64_t mask
    cdef public uint64_t tail           # where the next entry goes; entries up to `published` can be seen by the consumer
    cdef public uint64_t published
    cdef public uint64_t counted        # counted entries pushed so far
    cdef uint64_t head_seen

    # Room for one entry of `size` bytes (its 16-byte head included), or NULL. `keep_free` bytes must stay free behind it.
    # The entry's position (for a slot's ring_position) is `self.tail` after this call.
    cdef char* reserve(self, uint64_t size, uint64_t keep_free) noexcept nogil
    # Fill in the entry's head and move the private tail behind it.
    cdef void commit(self, char* entry, uint64_t size, uint8_t kind, uint8_t flags) noexcept nogil
    # Let the consumer see everything committed. True: it sleeps (the flag is cleared), write its eventfd.
    cdef bint publish_c(self) noexcept nogil
    cdef uint64_t waiting_c(self) noexcept nogil        # counted entries the consumer has not popped
    cdef uint64_t room_c(self) noexcept nogil           # free bytes
    cdef void want_c(self) noexcept nogil               # set `wanting`, full fence; look at the room again afterwards
    cdef void unwant_c(self) noexcept nogil

cdef class Consumer:
    cdef Py_buffer view
    cdef char* base
    cdef char* data
    cdef readonly uint64_t capacity
    cdef uint64_t mask
    cdef public uint64_t cursor         # next entry to look at
    cdef public uint64_t counted        # counted total at the cursor
    cdef uint64_t tail_seen

    cdef char* next_c(self) noexcept nogil              # the entry at the cursor (PADs skipped), or NULL when there is none
    cdef void advance_c(self, char* entry) noexcept nogil
    # Give everything before the cursor back. True: the producer wanted room and `low` or fewer counted entries wait: write its eventfd.
    cdef bint publish_c(self, uint64_t low) noexcept nogil
    cdef bint owes_c(self, uint64_t low) noexcept nogil # would publish_c(low) say True? Nothing is changed
    cdef bint sleep_c(self) noexcept nogil              # set `sleeping`, full fence; True: still nothing to read
    cdef void awake_c(self) noexcept nogil

cdef class Arena:
    cdef Py_buffer view
    cdef char* base
    cdef readonly int index
    cdef readonly uint64_t blocks
    cdef uint32_t* directory
    cdef uint64_t* returned
    cdef uint32_t* generations
    cdef char* first                    # block 0
    cdef readonly bint owner
    cdef int fd
    cdef uint64_t step_blocks
    cdef uint64_t free_head[32]         # offset of the first free slot of a class, 0 = none
    cdef uint16_t* free_count           # per block
    cdef uint64_t search_from

    # Owner only. A live slot for a body of this length: its handle, or 0 when there is no room. ring_position is all ones.
    cdef uint64_t alloc_c(self, uint64_t body_length, uint32_t connection, uint64_t uid) noexcept nogil
    cdef void refer_c(self, uint64_t handle, uint64_t ring_position) noexcept nogil
    # Owner only: take back a slot that was never referred to.
    cdef void abandon_c(self, uint64_t handle) noexcept nogil
    # The slot's body, or NULL when the handle is stale.
    cdef char* body_c(self, uint64_t handle) noexcept nogil
    cdef int finish_c(self, uint64_t handle, int touch, int limit) noexcept nogil
    cdef void set_limit_c(self, uint64_t handle, int limit) noexcept nogil
    cdef void list_free(self, uint64_t offset, int size_class) noexcept nogil
    cdef uint64_t take_blocks(self, uint64_t count) noexcept nogil
    cdef bint make_slab(self, int size_class) noexcept nogil
    cdef bint collect(self, bint everything) noexcept nogil
    cdef bint reclaim(self) noexcept nogil
    cdef void free_block_run(self, uint64_t block) noexcept nogil
    cdef object facts(self, char* slot)
