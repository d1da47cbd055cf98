# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled engine of one connection manager: raw descriptors, epoll, rounds, intake and delivery.

The plain twin is `traffic.py`; it says the same in fewer lines and is the better place to read the rules. What is here
is laid out for speed: connections in one C array, pooled buffers that only busy connections hold, and no Python call
for a message on its way in or out. Python is met only for the rare things: events, errors, TLS.

A turn: wait, read every readable connection once, take messages in rounds into the up ring, publish, carry out the
instructions of the down ring, send, account, publish.

Beside router and clients there is the link to the message manager (docs/durable.md, section 2): frames of the durable
road are copied into its output and out of its input, in one `send` and one `recv` a turn.
"""

from collections import deque

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.ref cimport PyObject
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset

from fairlead.store._store cimport COUNTED, FINISH_FAULT, ROUND, Arena, Consumer, Producer

from fairlead.broker.answers import error_frame, full_frame, gone_frame, preface_answer, room_frame, without
from fairlead.wire.hello import Hello, look

cdef bytes GONE = gone_frame()
cdef bytes FULL = full_frame()
cdef bytes ROOM = room_frame()
cdef const char* ADMIN = b"_ADMIN"
cdef str OVER_QUOTA = "The quota of this user or its tenant is %d bytes a message."

cdef extern from "sys/epoll.h" nogil:
    ctypedef union epoll_data_t:
        uint64_t u64
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int)
    int epoll_ctl(int, int, int, epoll_event*)
    int epoll_wait(int, epoll_event*, int, int)
    enum:
        EPOLL_CLOEXEC
        EPOLL_CTL_ADD
        EPOLL_CTL_DEL
        EPOLL_CTL_MOD
        EPOLLIN
        EPOLLOUT
        EPOLLERR
        EPOLLHUP
        EPOLLRDHUP

cdef extern from "sys/socket.h" nogil:
    ssize_t recv(int, void*, size_t, int)
    ssize_t send(int, const void*, size_t, int)
    int shutdown(int, int)
    int setsockopt(int, int, int, const void*, unsigned int)
    enum:
        MSG_DONTWAIT
        MSG_NOSIGNAL
        MSG_PEEK
        SHUT_WR
        SOL_SOCKET
        SO_RCVLOWAT

cdef extern from "netinet/tcp.h" nogil:
    enum:
        TCP_NODELAY

cdef extern from "unistd.h" nogil:
    int c_close "close" (int)
    ssize_t c_read "read" (int, void*, size_t)
    ssize_t c_write "write" (int, const void*, size_t)

cdef extern from "time.h" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int, timespec*)
    enum:
        CLOCK_MONOTONIC

cdef extern from *:
    """
    #include <stdint.h>
    static inline void ft_store(void* p, uint64_t v) { __atomic_store_n((uint64_t*)p, v, __ATOMIC_RELEASE); }
    """
    void ft_store(void*, uint64_t) noexcept nogil

cdef enum:
    PREFIX_MAX = 40                # of a tenant's names
    WHOLE_MAX = 512                # of a topic
    CLEARED_MAX = 1024             # names a connection need not be asked about again
    BURST_MS = 1000                # so much of its rate somebody may use at once
    IN_BYTES = 131072
    OUT_BYTES = 131072
    MARKS = 4096
    SCRATCH_BYTES = 131072
    SMALL_FRAME = 32768            # a longer message goes straight to its slot while it arrives
    EARLY_BYTES = 16384            # what a connection may send before it is welcome
    STOPPED_READ = 4096            # read at a time while the limit is met
    STREAM_READ = 262144           # read at a time into a slot
    PIECE = 1048576                # body bytes per frame
    PASS_MESSAGES = 512            # taken before the connections are polled again
    DRAIN_ENTRIES = 1024           # instructions before sending
    DRAIN_BYTES = 2097152
    FREE_FRAMES = 64               # uncounted frames of a connection in one visit
    SENDS = 4                      # per connection and turn
    EVENTS = 256
    POOL_MAX = 64
    NO_INSTRUCTION = 0xFFFFFFFF
    UP_CONTENT = 48
    LINGER_MS = 1000
    ENVELOPE = 16                  # before each frame on the link: length of both, connection index, uid
    LINK_BYTES = 524288            # of the link's buffers to begin with
    LINK_FRAME_MAX = 16777216
    LINK_HIGH = 8388608            # waiting for the message manager: those who send to it are not read beyond
    LINK_LOW = 4194304
    LARGE_BYTES = 268435456        # of durable frames that are still arriving, all connections together
    COMMAND_MAX = 65536
    STRAIGHT_BYTES = 32768         # frames of the message manager from here on are sent without being gathered
    FULL_BYTES = 2097152           # of bulk frames that wait for a connection: the message manager sends no more
    ROOM_BYTES = 262144            # … until so few wait
    BULK_SLACK = 16777216          # … and what is on its way until it hears of it is no reason to cut anybody off
    NAME_BYTES = 8192              # a bit for each value of a 16-bit hash
    HELLO_MAX = 16384              # looked at before anything is read

cdef enum:                         # states of a connection
    EMPTY = 0
    PREFACE = 1                    # its first eight bytes are awaited
    SECURING = 2                   # a TLS filter, or somebody who takes the whole connection, is awaited
    ATTACHING = 3                  # the router's CONFIRM is awaited
    CONFIRMED = 4                  # its CONNECT is awaited
    CONNECTING = 5                 # the router's WELCOME is awaited
    LIVE = 6
    CLOSING = 7                    # gone for the router; its last bytes are being sent
    LINGER = 8                     # all is sent; its own end is awaited

cdef enum:                         # what a step found
    TOOK = 0
    FREE = 1
    NONE = 2
    BLOCKED = 3

cdef enum:                         # which list a connection is on
    IDLE = 0
    ON_READY = 1
    ON_BLOCKED = 2

cdef enum:
    K_CONNECT = 0x01
    K_PING = 0x02
    K_PONG = 0x03
    K_CREDIT = 0x04
    K_SUBSCRIBE = 0x05
    K_UNSUBSCRIBE = 0x06
    K_REGISTER = 0x07
    K_UNREGISTER = 0x08
    K_CANCEL = 0x09
    K_CLOSE = 0x0A
    K_MOVE = 0x0B
    K_PUBLISH = 0x20
    K_REQUEST = 0x21
    K_CONVERSE = 0x23
    K_FANOUT = 0x24
    K_SEND = 0x25
    K_FRAGMENT = 0x2F
    K_CONFIRM = 0x41
    K_WELCOME = 0x42
    K_MOVED = 0x49
    K_ERROR = 0x44
    K_COMMAND = 0x60
    K_STORE = 0x61
    K_ANSWER = 0x70
    K_NOTICE = 0x75
    K_MORE = 0x66
    K_DURABLE_LAST = 0x6F
    K_COLUMNS = 0x76
    F_FRAGMENTED = 0x08
    F_IDENTITY = 0x10
    UP_MESSAGE = 1
    UP_CONTROL = 2
    UP_ATTACH = 3
    UP_GONE = 5
    UP_UNDELIVERED = 7
    DOWN_DELIVER = 1
    DOWN_DELETE = 2
    DOWN_PLAIN = 3
    DOWN_DETACH = 4
    IPPROTO_TCP = 6

cdef uint64_t LARGE = 0xFFFFFFFFFFFFFFFFULL   # in place of a handle: the frame goes to the link, from memory of its own

cdef struct Mark:                  # where in the stream a delivery ends
    uint64_t end
    uint32_t instruction
    uint32_t size

cdef struct OutBuffer:
    OutBuffer* following
    uint32_t start
    uint32_t end
    uint32_t mark_first
    uint32_t mark_count
    Mark marks[MARKS]
    char data[OUT_BYTES]

cdef struct Head:                  # of a delivery that has to wait; shared by its recipients
    uint32_t references
    uint32_t length
    uint32_t body_length
    uint8_t plain
    uint8_t last                   # the connection is closed behind it
    char* body
    char data[1]

cdef struct Waiting:
    Head* head
    uint32_t instruction

cdef struct Instruction:
    uint64_t handle
    uint32_t remaining             # recipients, plus one while it is being carried out
    int32_t record                 # in the outstanding table, or -1
    uint32_t following
    uint8_t touch
    uint8_t limit

cdef struct Connection:
    uint64_t uid
    int fd
    uint32_t index
    uint32_t generation
    uint32_t interest
    uint8_t state
    uint8_t looks                  # what kind of connection it is has to be found out, before anything is read
    uint8_t place                  # which list it is on
    uint8_t eof                    # nothing more is read
    uint8_t deaf                   # what it sent and was not taken yet does not count any more
    uint8_t linger                 # send what is gathered before closing
    uint8_t attached               # the router knows it
    uint8_t polled                 # it is in the epoll set
    uint8_t masked                 # not polled for reading for the time being
    uint8_t dirty
    uint8_t write_blocked
    uint8_t unlimited
    uint8_t overdraft              # its credit cannot be heard, so the transport alone is the brake
    uint8_t pinged
    uint8_t tls
    uint8_t detaching
    uint8_t drop_fragments
    uint8_t emitting               # the head of the first waiting delivery is in the buffer already
    uint8_t hurt                   # writing failed
    uint8_t durable                # it has used the durable road
    uint8_t restricted             # Python is asked before it may publish to a destination
    uint8_t choked                 # it waits for the link to drain
    uint8_t slowed                 # it waits since it, or its tenant, sends faster than it may
    uint8_t prefix_length          # of a tenant's client: what stands before its names inside
    char prefix[PREFIX_MAX]
    uint64_t body_limit            # its quota for one message; 0: none
    uint32_t meter_slot[2]         # where it is counted how fast its user and its tenant send
    double meter_cost[2]           # milliseconds a message takes up there; 0: no limit
    uint8_t more_first             # the next frame is one of `more`
    uint64_t awaits                # number of the turn at whose end Python deals with its last frame
    uint32_t lost                  # deliveries given up because it ended
    uint64_t one_more              # number of the stop in which it had its one more
    uint32_t wanted                # bytes without which that cannot be told
    char* data                     # input
    uint32_t start
    uint32_t end
    uint32_t room
    uint32_t skip                  # bytes of a refused frame still to come
    uint64_t handle                # a large body on its way into its slot
    char* body
    char* head
    uint32_t head_length
    uint32_t frame_left            # of its current frame
    uint64_t body_total
    uint64_t body_got
    OutBuffer* out
    uint64_t sent
    uint64_t queued
    Waiting* waiting
    uint32_t waiting_first
    uint32_t waiting_count
    uint32_t waiting_room
    uint32_t emitted               # body bytes of the first waiting delivery in the buffer already
    uint64_t waiting_bytes
    char* more                     # frames of the message manager that found no room in the output
    uint64_t more_start
    uint64_t more_end
    uint64_t more_room
    uint32_t more_left             # of the frame that is half in the output
    uint32_t full                  # generation of the link over which it was said that it does not read
    int64_t credit
    int64_t keep_alive_ms
    int64_t heard_ms
    int64_t sent_ms
    int64_t since_ms               # of the state, where a timer runs


cdef inline uint32_t u32(const char* p) noexcept nogil:
    return (<const uint32_t*>p)[0]


cdef inline uint64_t u64(const char* p) noexcept nogil:
    return (<const uint64_t*>p)[0]


cdef inline uint16_t u16(const char* p) noexcept nogil:
    return (<const uint16_t*>p)[0]


cdef inline uint32_t name_bit(const char* p, uint32_t length) noexcept nogil:
    """Where in the filter a name is: a hash of its length, first and last eight bytes."""
    cdef uint64_t first = 0, last = 0
    if length >= 8:
        first = u64(p)
        last = u64(p + length - 8)
    else:
        memcpy(&first, p, length)
    first = (first ^ (last * <uint64_t>0x9E3779B97F4A7C15ULL) ^ length) * <uint64_t>0xD6E8FEB86659FD93ULL
    return <uint32_t>(first >> 48)


cdef inline uint64_t separators(uint64_t word) noexcept nogil:
    """Not 0 if one of the eight bytes is a 0x1F, which stands between several topics."""
    word ^= <uint64_t>0x1F1F1F1F1F1F1F1FULL
    return (word - <uint64_t>0x0101010101010101ULL) & ~word & <uint64_t>0x8080808080808080ULL


cdef inline bint is_joined(const char* p, uint32_t length) noexcept nogil:
    """Are these several topics?"""
    cdef uint64_t word = 0
    cdef uint32_t at = 0
    if length < 8:
        memcpy(&word, p, length)
        return separators(word) != 0
    while at + 8 < length:
        if separators(u64(p + at)):
            return True
        at += 8
    return separators(u64(p + length - 8)) != 0


cdef inline int64_t clock_ms() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <int64_t>t.tv_sec * 1000 + t.tv_nsec // 1000000


cdef class Traffic:
    """The connections of one manager and the bytes on them."""

    cdef Producer up
    cdef Consumer down
    cdef Arena own
    cdef list arenas
    cdef PyObject* arena_of[256]
    cdef Py_buffer table_view
    cdef bint table_held
    cdef char* table                     # outstanding records
    cdef uint32_t* table_free
    cdef uint32_t table_free_count
    cdef uint32_t table_size
    cdef int epoll
    cdef int wake_fd
    cdef int wake_router_fd
    cdef Connection* connections
    cdef uint32_t capacity
    cdef uint32_t highest                # one above the highest index in use
    cdef uint32_t* ready
    cdef uint32_t ready_count
    cdef uint32_t* blocked
    cdef uint32_t blocked_count
    cdef uint32_t* dirty
    cdef uint32_t dirty_count
    cdef uint32_t rotation
    cdef char* scratch
    cdef char** in_pool
    cdef uint32_t in_pool_count
    cdef OutBuffer* out_pool
    cdef uint32_t out_pool_count
    cdef Instruction* instructions
    cdef uint32_t instructions_room
    cdef uint32_t instructions_free
    cdef uint32_t instructions_open
    cdef uint32_t* batch                 # instructions begun since the head was published
    cdef uint32_t batch_count
    cdef uint32_t batch_room
    cdef epoll_event* found
    cdef char* last_entry
    cdef list events
    cdef object overflow                 # uncounted entries that found no room in the up ring
    cdef uint32_t overflow_count
    cdef dict filters                    # TLS: index -> [filter, ciphertext, sent of it, plain bytes it stands for]
    cdef dict reasons                    # why a connection ends
    cdef int64_t now
    cdef int64_t swept_ms
    # what the settings say
    cdef uint64_t limit
    cdef uint64_t resume_below
    cdef uint32_t messages_per_round
    cdef uint64_t header_max
    cdef uint64_t body_max
    cdef uint64_t frame_max
    cdef uint64_t slow_messages
    cdef uint64_t slow_bytes
    cdef int64_t preface_ms
    cdef int64_t handshake_ms
    cdef int64_t keep_alive_ms
    cdef bint tls_possible
    cdef bint tunnels                    # connections that begin with HTTP are somebody else's
    # admission
    cdef bint stopped
    cdef bint stuck_ring                 # the ring has no room in bytes
    cdef int64_t starving                # the connection whose message found no room in the arena, or -1
    cdef uint64_t stop_number
    cdef int64_t allowance               # counted entries that may be pushed before the ring is looked at again
    cdef uint64_t keep_free
    # the link to the message manager
    cdef int link_fd
    cdef uint32_t link_generation
    cdef uint32_t link_interest
    cdef bint link_blocked               # its socket takes no more
    cdef bint link_choked                # too much waits for it
    cdef bint link_stuck                 # a broadcast from it waits for room in the store
    cdef char* link_in
    cdef uint64_t link_in_start, link_in_end, link_in_room
    cdef char* link_out
    cdef uint64_t link_out_start, link_out_end, link_out_room
    cdef uint64_t large_bytes
    cdef uint64_t turn_number
    cdef bint asked                      # Python deals with a frame that others wait behind
    cdef set names                       # topics and queues of the message manager
    cdef uint8_t name_bits[NAME_BYTES]
    cdef uint32_t name_count
    cdef dict pairs                      # index -> header pair with the user's name
    cdef dict cleared                    # index -> names Python has allowed it to publish to
    cdef object meters_kept              # when each user or tenant with a rate has used up what it sent, in ms
    cdef double* meters
    cdef uint32_t meter_count
    cdef uint64_t n_slowed, n_over_quota
    # what is counted
    cdef uint64_t n_durable_in, n_durable_out, n_diverted, n_link_strays, n_link_dropped, n_link_chokes
    cdef uint64_t n_connections, n_live, n_messages_in, n_bytes_in, n_deliveries, n_bytes_out, n_instructions
    cdef uint64_t n_stops, n_one_more, n_starved, n_slow, n_faults, n_undelivered, n_ticks_found, n_rounds, n_wakes
    cdef uint64_t n_refused, n_lost

    def __cinit__(self):
        self.epoll = -1
        self.link_fd = -1
        self.table_held = False

    def __init__(self, *, up, down, arenas, int own, outstanding, int wake_fd, int wake_router_fd, settings):
        cdef uint32_t i
        self.up = up
        self.down = down
        self.arenas = [arenas[key] for key in arenas]
        for key, arena in arenas.items():
            assert isinstance(arena, Arena)
            self.arena_of[<int>key] = <PyObject*>arena
        self.own = arenas[own]
        self.wake_fd = wake_fd
        self.wake_router_fd = wake_router_fd
        PyObject_GetBuffer(outstanding, &self.table_view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        self.table_held = True
        self.table_size = <uint32_t>u64(<char*>self.table_view.buf + 64)
        self.table = <char*>self.table_view.buf + 4096
        assert 4096 + 16 * <uint64_t>self.table_size <= <uint64_t>self.table_view.len
        self.capacity = settings.connections
        self.limit = settings.limit
        if self.up.entries_max and self.up.entries_max < self.limit:
            self.limit = self.up.entries_max
        self.resume_below = min(settings.resume_below, self.limit)
        self.messages_per_round = settings.messages_per_round
        self.header_max = settings.header_max
        self.body_max = min(settings.body_max, self.own.blocks * 65536 - 128)
        self.frame_max = settings.frame_max
        self.slow_messages = settings.slow_client_messages
        self.slow_bytes = settings.slow_client_bytes
        self.preface_ms = settings.preface_ms
        self.handshake_ms = settings.handshake_ms
        self.keep_alive_ms = settings.keep_alive_ms
        self.tls_possible = settings.tls
        self.tunnels = settings.tunnels
        self.keep_free = self.up.capacity // 4
        self.starving = -1
        self.events = []
        self.overflow = deque()
        self.filters = {}
        self.reasons = {}
        self.names = set()
        self.pairs = {}
        self.cleared = {}
        self.connections = <Connection*>calloc(self.capacity, sizeof(Connection))
        self.ready = <uint32_t*>calloc(self.capacity, sizeof(uint32_t))
        self.blocked = <uint32_t*>calloc(self.capacity, sizeof(uint32_t))
        self.dirty = <uint32_t*>calloc(2 * self.capacity, sizeof(uint32_t))  # one may break while it is sent to
        self.scratch = <char*>malloc(SCRATCH_BYTES)
        self.in_pool = <char**>calloc(POOL_MAX, sizeof(char*))
        self.found = <epoll_event*>calloc(EVENTS, sizeof(epoll_event))
        self.table_free = <uint32_t*>calloc(self.table_size + 1, sizeof(uint32_t))
        self.instructions_free = NO_INSTRUCTION
        if (self.connections == NULL or self.ready == NULL or self.blocked == NULL or self.dirty == NULL
                or self.scratch == NULL or self.in_pool == NULL or self.found == NULL or self.table_free == NULL):
            raise MemoryError()
        for i in range(self.capacity):
            self.connections[i].fd = -1
            self.connections[i].index = i
        for i in range(self.table_size):
            if u64(self.table + 16 * (self.table_size - 1 - i)) == 0:
                self.table_free[self.table_free_count] = self.table_size - 1 - i
                self.table_free_count += 1
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll < 0:
            raise OSError(errno, "epoll_create1")
        self.now = self.swept_ms = clock_ms()
        self.add_watch(wake_fd)

    def __dealloc__(self):
        cdef uint32_t i
        cdef Connection* c
        cdef OutBuffer* o
        if self.connections != NULL:
            for i in range(self.highest):
                c = &self.connections[i]
                if c.fd >= 0:
                    c_close(c.fd)
                free(c.data)
                free(c.head)
                free(c.out)
                free(c.more)
                if c.handle == LARGE:
                    free(c.body)
                while c.waiting_count:
                    self.release(c.waiting[c.waiting_first].head)
                    c.waiting_first = (c.waiting_first + 1) % c.waiting_room
                    c.waiting_count -= 1
                free(c.waiting)
        for i in range(self.in_pool_count):
            free(self.in_pool[i])
        while self.out_pool != NULL:
            o = self.out_pool
            self.out_pool = o.following
            free(o)
        free(self.connections)
        free(self.ready)
        free(self.blocked)
        free(self.dirty)
        free(self.scratch)
        free(self.in_pool)
        free(self.found)
        free(self.table_free)
        free(self.instructions)
        free(self.batch)
        free(self.link_in)
        free(self.link_out)
        if self.link_fd >= 0:
            c_close(self.link_fd)
        if self.epoll >= 0:
            c_close(self.epoll)
        if self.table_held:
            PyBuffer_Release(&self.table_view)

    # -- what the edge says ------------------------------------------------------------------------------------

    def adopt(self, uint32_t index, uint64_t uid, int fd, now_ms=None):
        """Serve this connection from now on; its descriptor belongs to the engine."""
        cdef Connection* c
        cdef int one = 1
        if index >= self.capacity or self.connections[index].fd >= 0:
            raise ValueError(f"connection {index} is taken")
        c = &self.connections[index]
        cdef uint32_t generation = (c.generation + 1) & 0x7FFFFFFF
        memset(c, 0, sizeof(Connection))
        c.index = index
        c.generation = generation
        c.uid = uid
        c.fd = fd
        c.state = PREFACE
        c.keep_alive_ms = self.keep_alive_ms
        c.since_ms = c.heard_ms = c.sent_ms = self.time_of(now_ms)
        c.looks = setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) == 0 and self.tunnels
        if index >= self.highest:
            self.highest = index + 1
        self.n_connections += 1
        self.poll(c)

    def watch(self, int fd):
        """Report `(fd, "readable", b"")` when this descriptor can be read."""
        self.add_watch(fd)

    def unwatch(self, int fd):
        epoll_ctl(self.epoll, EPOLL_CTL_DEL, fd, NULL)

    def push(self, int kind, uint64_t uid, uint32_t index, bytes content):
        """An entry of the manager itself for the router: not counted, never refused."""
        if kind == UP_ATTACH and index < self.capacity and self.connections[index].uid == uid:
            self.connections[index].attached = 1
        self.push_uncounted(kind, uid, index, content)

    def options(self, uint32_t index, uint64_t uid, int64_t credit, int64_t keep_alive_ms):
        """What the client's CONNECT asked for; credit 0 means no limit."""
        cdef Connection* c = self.find(index, uid)
        if c == NULL:
            return False
        c.credit = credit
        c.unlimited = credit == 0
        if keep_alive_ms > 0:
            c.keep_alive_ms = keep_alive_ms
        return True

    def send(self, uint32_t index, uint64_t uid, bytes frames):
        """Whole frames for one connection, in front of what waits for credit."""
        cdef Connection* c = self.find(index, uid)
        if c == NULL:
            return False
        self.put_plain(c, PyBytes_AS_STRING(frames), <uint32_t>PyBytes_GET_SIZE(frames), False, False)
        return True

    def close(self, uint32_t index, uint64_t uid, str reason, bytes frames=b""):
        """End one connection, with a last word if `frames` are given; messages it sent before are still taken."""
        cdef Connection* c = self.find(index, uid)
        if c == NULL:
            return False
        self.cut(c, reason, frames, False)
        return True

    def secure(self, uint32_t index, uint64_t uid, tls_filter):
        """Put a TLS filter between this connection's bytes and everything else."""
        cdef Connection* c = self.find(index, uid)
        if c == NULL or c.state != SECURING:
            return False
        early = c.data[c.start:c.end]
        self.drop_input(c)
        c.tls = 1
        c.state = PREFACE
        self.filters[index] = [tls_filter, b"", 0, 0]
        self.decipher(c, early)
        return True

    def descriptor(self, uint32_t index, uint64_t uid):
        """Of a connection reported as `http`, to be passed on; -1 if there is none."""
        cdef Connection* c = self.find(index, uid)
        return -1 if c == NULL or c.state != SECURING or c.start != c.end else c.fd

    def let_go(self, uint32_t index, uint64_t uid):
        """It was passed on: let go of it without a word. Its place is reported as closed, like any other."""
        cdef Connection* c = self.find(index, uid)
        if c == NULL or c.state != SECURING or c.start != c.end:
            return False
        c.eof = 1
        c.deaf = 1
        self.reasons[index] = "passed-on"
        self.close_now(c)
        return True

    def identity(self, uint32_t index, uint64_t uid, bytes pair, bint restricted, bytes prefix=b""):
        """Who it is: the header pair its messages to destinations carry, whether Python is asked about each name, and
        what stands before its names inside."""
        cdef Connection* c = self.find(index, uid)
        if c == NULL:
            return False
        if len(prefix) > PREFIX_MAX:
            raise ValueError("this prefix is too long")
        c.restricted = restricted
        c.prefix_length = <uint8_t>len(prefix)
        memcpy(c.prefix, PyBytes_AS_STRING(prefix), len(prefix))
        self.cleared.pop(index, None)
        if pair:
            self.pairs[index] = pair
        else:
            self.pairs.pop(index, None)
        return True

    def clear(self, uint32_t index, uint64_t uid, bytes name):
        """Python need not be asked again about publishes of this connection to this name, until `identity`."""
        if self.find(index, uid) != NULL:
            names = self.cleared.setdefault(index, set())
            if len(names) >= CLEARED_MAX:
                names.clear()
            names.add(name)

    def metered(self, view):
        """Where the rates of users and tenants are kept: an array of doubles that all managers have in common."""
        cdef Py_buffer buffer
        self.meters_kept = view
        if PyObject_GetBuffer(view, &buffer, PyBUF_WRITABLE) != 0:
            raise ValueError("the meters cannot be written")
        self.meters = <double*>buffer.buf
        self.meter_count = <uint32_t>(buffer.len // 8)
        PyBuffer_Release(&buffer)

    def limits(self, uint32_t index, uint64_t uid, uint64_t body_limit, meters):
        """The quotas of one connection: bytes a message, and (slot, messages a second) of its user and its tenant."""
        cdef Connection* c = self.find(index, uid)
        cdef int i
        if c == NULL:
            return False
        c.body_limit = body_limit
        for i in range(2):
            c.meter_cost[i] = 0.0
        for i, (slot, per_s) in enumerate(meters[:2]):
            if slot < self.meter_count and per_s > 0:
                c.meter_slot[i] = slot
                c.meter_cost[i] = 1000.0 / per_s
        return True

    def link(self, int fd):
        """Attach the connected, nonblocking stream to the message manager; it belongs to the engine."""
        cdef epoll_event event
        if self.link_fd >= 0:
            raise ValueError("there is a link already")
        if self.link_in == NULL:
            self.link_in = <char*>malloc(LINK_BYTES)
            self.link_out = <char*>malloc(LINK_BYTES)
            if self.link_in == NULL or self.link_out == NULL:
                raise MemoryError()
            self.link_in_room = self.link_out_room = LINK_BYTES
        self.link_generation += 1
        event.events = self.link_interest = EPOLLIN
        event.data.u64 = (<uint64_t>3 << 62) | self.link_generation
        if epoll_ctl(self.epoll, EPOLL_CTL_ADD, fd, &event) != 0:
            raise OSError(errno, "epoll_ctl")
        self.link_fd = fd

    def unlink(self):
        """Let go of the link, as if it were lost; nothing is reported."""
        self.drop_link()

    def forward(self, uint32_t index, uint64_t uid, bytes frame):
        """A frame for the message manager, in the name of a connection; uid 0 is the link itself. False: no link."""
        cdef Connection* c
        if self.link_fd < 0:
            return False
        if uid:
            c = self.find(index, uid)
            if c == NULL:
                return False
            c.durable = 1
        memcpy(self.link_room(index, uid, <uint32_t>PyBytes_GET_SIZE(frame)),
               PyBytes_AS_STRING(frame), PyBytes_GET_SIZE(frame))
        return True

    def notify(self, bytes frames):
        """Whole frames for every live connection that has used the durable road; how many those are."""
        cdef uint32_t i
        cdef Connection* c
        cdef int told = 0
        for i in range(self.highest):
            c = &self.connections[i]
            if c.fd >= 0 and c.durable and self.takes_durable(c):
                self.put_durable(c, PyBytes_AS_STRING(frames), <uint32_t>PyBytes_GET_SIZE(frames))
                told += 1
        return told

    def divert(self, add, remove):
        """Publishes to these names go to the message manager from now on, or no longer."""
        cdef bytes name
        cdef uint32_t bit
        self.names.difference_update(remove)
        self.names.update(add)
        memset(self.name_bits, 0, NAME_BYTES)
        for name in self.names:
            bit = name_bit(PyBytes_AS_STRING(name), <uint32_t>PyBytes_GET_SIZE(name))
            self.name_bits[bit >> 3] |= <uint8_t>(1 << (bit & 7))
        self.name_count = <uint32_t>len(self.names)

    def indices(self):
        """(index, uid, live) of every connection held."""
        cdef uint32_t i
        return [
            (i, self.connections[i].uid, self.connections[i].state == LIVE)
            for i in range(self.highest) if self.connections[i].fd >= 0
        ]

    def waiting_for(self, uint32_t index):
        """(messages, bytes) that wait for one connection."""
        cdef Connection* c = &self.connections[index]
        return self.count_waiting(c), self.bytes_waiting(c)

    def statistics(self):
        """Totals since the start, and how things stand."""
        return {
            "connections": self.n_connections, "live": self.n_live,
            "messages_in": self.n_messages_in, "bytes_in": self.n_bytes_in,
            "deliveries": self.n_deliveries, "bytes_out": self.n_bytes_out, "instructions": self.n_instructions,
            "rounds": self.n_rounds, "stops": self.n_stops, "one_more": self.n_one_more,
            "starved": self.n_starved, "slow_clients": self.n_slow, "refused": self.n_refused, "lost": self.n_lost,
            "undelivered": self.n_undelivered, "accounting_faults": self.n_faults,
            "safety_tick_finds": self.n_ticks_found, "wakes": self.n_wakes,
            "stopped": int(self.stopped or self.stuck_ring or self.starving >= 0),
            "queue_counted": self.up.waiting_c(), "queue_private": len(self.overflow),
            "outstanding": self.table_size - self.table_free_count, "open_instructions": self.instructions_open,
            "blocked": self.blocked_count,
            "durable_in": self.n_durable_in, "durable_out": self.n_durable_out, "diverted": self.n_diverted,
            "link_strays": self.n_link_strays, "link_dropped": self.n_link_dropped, "link_chokes": self.n_link_chokes,
            "slowed": self.n_slowed, "over_quota": self.n_over_quota,
            "link_waiting": self.link_out_end - self.link_out_start, "link_choked": int(self.link_choked),
        }

    def turn(self, int timeout_ms, now_ms=None):
        """Wait for something to do, at most so long, and do it. Returns what Python has to hear of."""
        cdef int count, i, problem = 0, wait = timeout_ms
        cdef bint slept = False
        cdef uint64_t key
        cdef uint32_t flags
        cdef Connection* c
        cdef uint64_t scrap
        self.now = self.time_of(now_ms)
        self.turn_number += 1
        self.admit(self.asked)
        self.asked = False
        if self.link_out_start < self.link_out_end and not self.link_blocked:
            self.flush_link()
        if self.up.publish_c():  # what was pushed since the last turn must not wait with us
            self.ring_router()
        if self.ready_count or self.dirty_count or self.events:
            wait = 0
        elif self.overflow_count or self.link_stuck or self.blocked_count and not self.stopped:
            # No room in the arena or, in bytes, in the ring: nobody tells us, so look again soon.
            wait = min(wait, 5)
        if wait:
            if self.stopped or self.stuck_ring or self.overflow_count:
                self.up.want_c()
                if self.stopped and self.up.waiting_c() < self.resume_below:
                    wait = 0
            if wait:
                slept = True
                if not self.down.sleep_c():
                    wait = 0
        with nogil:
            count = epoll_wait(self.epoll, self.found, EVENTS, wait)
            if count < 0:
                problem = errno
        if slept:
            if count == 0 and wait >= 100 and self.down.next_c() != NULL:
                # Entries, and nobody woke us. The producer may be between its two steps: give it a moment.
                with nogil:
                    count = epoll_wait(self.epoll, self.found, EVENTS, 20)
                if count == 0:
                    self.n_ticks_found += 1
            self.down.awake_c()
        if count < 0:
            if problem and problem != EINTR:
                raise OSError(problem, "epoll_wait")
            count = 0
        if wait and now_ms is None:
            self.now = clock_ms()
        self.admit(True)
        for i in range(count):
            key = self.found[i].data.u64
            flags = self.found[i].events
            if key >> 62 == 3:
                if self.link_fd >= 0 and <uint32_t>key == self.link_generation:
                    if flags & EPOLLOUT:
                        self.link_blocked = False
                    if flags & (EPOLLIN | EPOLLHUP | EPOLLERR):
                        self.receive_link()
                continue
            if key >> 63:
                if <int>(key & 0xFFFFFFFF) == self.wake_fd:
                    c_read(self.wake_fd, &scrap, 8)
                    self.n_wakes += 1
                else:
                    self.events.append((<int>(key & 0xFFFFFFFF), "readable", b""))
                continue
            c = &self.connections[key & 0xFFFFFFFF]
            if c.fd < 0 or c.generation != <uint32_t>(key >> 32):
                continue
            if flags & EPOLLOUT:
                c.write_blocked = 0
                self.touch(c)
            if flags & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR):
                self.receive(c, flags)
        if self.link_stuck:
            self.take_link()
        self.rounds()
        if self.up.publish_c():
            self.ring_router()
        if self.link_out_start < self.link_out_end and not self.link_blocked:
            self.flush_link()
        self.drain()
        if self.now - self.swept_ms >= 1000 or self.now < self.swept_ms:
            self.swept_ms = self.now
            self.sweep()
            self.flush_all()
        if self.overflow_count:
            self.push_overflow()
        if self.up.publish_c():
            self.ring_router()
        events = self.events
        self.events = []
        return events

    # -- small things ------------------------------------------------------------------------------------------

    cdef int64_t time_of(self, now_ms) except? -1:
        return clock_ms() if now_ms is None else <int64_t>now_ms

    cdef void ring_router(self) noexcept:
        cdef uint64_t one = 1
        c_write(self.wake_router_fd, &one, 8)

    cdef int add_watch(self, int fd) except -1:
        cdef epoll_event event
        event.events = EPOLLIN
        event.data.u64 = (<uint64_t>1 << 63) | <uint32_t>fd
        if epoll_ctl(self.epoll, EPOLL_CTL_ADD, fd, &event) != 0:
            raise OSError(errno, "epoll_ctl")
        return 0

    cdef Connection* find(self, uint32_t index, uint64_t uid) noexcept:
        if index >= self.capacity or self.connections[index].fd < 0 or self.connections[index].uid != uid:
            return NULL
        return &self.connections[index]

    cdef void poll(self, Connection* c) noexcept:
        """Tell epoll what this connection waits for, if that has changed."""
        cdef uint32_t wanted = 0
        cdef epoll_event event
        if c.masked:
            wanted = EPOLLRDHUP if c.masked == 1 else 0
        elif not c.eof or c.state == LINGER:
            wanted = EPOLLIN
        if c.write_blocked:
            wanted |= EPOLLOUT
        event.events = wanted
        event.data.u64 = (<uint64_t>c.generation << 32) | c.index
        if wanted == 0 and (c.masked == 3 or c.eof and c.state != LINGER):
            # Nothing is wanted, and a hang-up would be reported over and over.
            if c.polled:
                epoll_ctl(self.epoll, EPOLL_CTL_DEL, c.fd, NULL)
                c.polled = 0
                c.interest = 0
        elif not c.polled:
            epoll_ctl(self.epoll, EPOLL_CTL_ADD, c.fd, &event)
            c.polled = 1
            c.interest = wanted
        elif wanted != c.interest:
            epoll_ctl(self.epoll, EPOLL_CTL_MOD, c.fd, &event)
            c.interest = wanted

    cdef inline void touch(self, Connection* c) noexcept:
        if not c.dirty:
            c.dirty = 1
            self.dirty[self.dirty_count] = c.index
            self.dirty_count += 1

    cdef inline void enlist(self, Connection* c) noexcept:
        if c.place == ON_BLOCKED and c.deaf:
            self.unblock(c)
        if c.place == IDLE:
            c.place = ON_READY
            self.ready[self.ready_count] = c.index
            self.ready_count += 1

    cdef void unblock(self, Connection* c) noexcept:
        """It has nothing to wait for any more."""
        cdef uint32_t i, kept = 0
        for i in range(self.blocked_count):
            if self.blocked[i] != c.index:
                self.blocked[kept] = self.blocked[i]
                kept += 1
        self.blocked_count = kept
        c.place = IDLE

    # -- intake: bytes -----------------------------------------------------------------------------------------

    cdef int make_room(self, Connection* c) except -1:
        """Room behind the input of this connection: a pooled buffer when it may be a flood, little otherwise."""
        cdef uint32_t held = c.end - c.start
        cdef uint32_t wanted
        cdef char* data
        if c.state == LIVE and not self.stopped and not self.stuck_ring and self.starving < 0 or held > SMALL_FRAME:
            wanted = IN_BYTES
        else:
            wanted = held + STOPPED_READ
        if c.room >= wanted:
            if c.start and c.room - c.end < STOPPED_READ:
                memmove(c.data, c.data + c.start, held)
                c.start = 0
                c.end = held
            return 0
        if wanted == IN_BYTES:
            if self.in_pool_count:
                self.in_pool_count -= 1
                data = self.in_pool[self.in_pool_count]
            else:
                data = <char*>malloc(IN_BYTES)
        else:
            data = <char*>malloc(wanted)
        if data == NULL:
            raise MemoryError()
        if held:
            memcpy(data, c.data + c.start, held)
        self.free_input(c)
        c.data = data
        c.room = wanted
        c.start = 0
        c.end = held
        return 0

    cdef void free_input(self, Connection* c) noexcept:
        if c.room == IN_BYTES and self.in_pool_count < POOL_MAX:
            self.in_pool[self.in_pool_count] = c.data
            self.in_pool_count += 1
        else:
            free(c.data)
        c.data = NULL
        c.room = 0

    cdef void drop_input(self, Connection* c) noexcept:
        self.free_input(c)
        c.start = c.end = 0

    cdef void shrink(self, Connection* c) noexcept:
        """Only a small partial frame is left: keep that much and give the big buffer back."""
        cdef uint32_t held = c.end - c.start
        cdef char* data
        if held == 0:
            if c.data != NULL:
                self.drop_input(c)
        elif c.room == IN_BYTES and held <= SMALL_FRAME:
            data = <char*>malloc(held)
            if data == NULL:
                return
            memcpy(data, c.data + c.start, held)
            self.free_input(c)
            c.data = data
            c.room = c.end = held
            c.start = 0

    cdef int receive(self, Connection* c, uint32_t flags) except -1:
        """One recv of a connection that epoll reported."""
        cdef ssize_t n
        cdef uint32_t wanted
        if c.state == LINGER:
            n = recv(c.fd, self.scratch, SCRATCH_BYTES, MSG_DONTWAIT)
            if n == 0 or (n < 0 and errno != EAGAIN and errno != EINTR):
                self.close_now(c)
            return 0
        if c.eof:
            if flags & (EPOLLHUP | EPOLLERR):
                self.broken(c)
            return 0
        if c.looks and self.is_looking(c):
            return 0
        if c.place != IDLE and (self.stopped or self.stuck_ring or self.starving >= 0 or c.choked or c.slowed):
            # It has whole frames that may not be taken now: do not read on, but do not poll in vain either. One that
            # has closed is read as far as there is room, since only its end tells whether the last frame is whole.
            if not flags & (EPOLLHUP | EPOLLERR | EPOLLRDHUP) or c.end - c.start > IN_BYTES - STOPPED_READ:
                c.masked = 3 if flags & (EPOLLHUP | EPOLLERR) else 2 if flags & EPOLLRDHUP else 1
                self.poll(c)
                return 0
        elif c.place != IDLE and c.end - c.start >= SMALL_FRAME:
            return 0
        if c.state < LIVE and c.end - c.start >= EARLY_BYTES:
            c.masked = 3 if flags & (EPOLLHUP | EPOLLERR) else 2 if flags & EPOLLRDHUP else 1
            self.poll(c)
            return 0
        if c.tls:
            n = recv(c.fd, self.scratch, 49152, MSG_DONTWAIT)
        elif c.skip and c.start == c.end:
            wanted = c.skip if c.skip < SCRATCH_BYTES else SCRATCH_BYTES
            n = recv(c.fd, self.scratch, wanted, MSG_DONTWAIT)
        elif c.frame_left and c.start == c.end:
            wanted = c.frame_left if c.frame_left < STREAM_READ else STREAM_READ
            n = recv(c.fd, c.body + c.body_got, wanted, MSG_DONTWAIT)
        else:
            self.make_room(c)
            wanted = c.room - c.end
            n = recv(c.fd, c.data + c.end, wanted, MSG_DONTWAIT)
        if n < 0:
            if errno == EAGAIN or errno == EINTR:
                self.shrink(c)
                return 0
            self.finished(c)
            return 0
        if n == 0:
            self.finished(c)
            return 0
        c.heard_ms = self.now
        c.pinged = 0
        self.n_bytes_in += n
        if c.tls:
            self.decipher(c, self.scratch[:n])
        elif c.skip and c.start == c.end:
            c.skip -= <uint32_t>n
        elif c.frame_left and c.start == c.end:
            c.body_got += n
            c.frame_left -= <uint32_t>n
            if c.frame_left == 0:
                self.enlist(c)
        else:
            c.end += <uint32_t>n
            self.enlist(c)
        return 0

    cdef bint is_looking(self, Connection* c) except -1:
        """What kind of connection is it? True: nothing is to be read now. Until enough has come epoll keeps quiet, so
        being woken with less than that means that no more will come."""
        cdef int low = 1
        cdef uint32_t wanted = 0
        cdef ssize_t n = recv(c.fd, self.scratch, HELLO_MAX, MSG_PEEK | MSG_DONTWAIT)
        if n < 0 and (errno == EAGAIN or errno == EINTR):
            return True
        if n > 0 and self.scratch[0] == c"F":
            c.looks = 0                        # ours, as nearly always; and nothing was wanted after less than a byte
            return False
        kind = Hello.RUBBISH
        if n > 0 and n >= <ssize_t>c.wanted:
            kind, wanted = look(self.scratch[:n], tls=self.tls_possible)
        if wanted or c.wanted:
            if wanted:
                low = <int>wanted
            setsockopt(c.fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof(low))
            c.wanted = wanted
        if kind is Hello.MORE:
            return True
        c.looks = 0
        if kind is not Hello.HTTP and kind is not Hello.TLS_HTTP:
            return False
        c.state = SECURING
        c.masked = 3
        self.poll(c)
        self.events.append((c.index, "http", b"P" if kind is Hello.HTTP else b"T"))
        return True

    cdef int decipher(self, Connection* c, bytes data) except -1:
        """Ciphertext in, plain input and handshake answers out: one call of the filter."""
        cdef list state = self.filters[c.index]
        cdef uint32_t length, held
        cdef char* grown
        try:
            plain, answer = state[0].receive(data)
        except Exception:
            self.cut(c, "tls", b"", True)
            return 0
        if answer:
            state[1] = state[1][state[2]:] + answer
            state[2] = 0
            self.touch(c)
        if plain:
            length = <uint32_t>len(plain)
            held = c.end - c.start
            if c.room - c.end < length:
                grown = <char*>malloc(held + length)
                if grown == NULL:
                    raise MemoryError()
                if held:
                    memcpy(grown, c.data + c.start, held)
                self.free_input(c)
                c.data = grown
                c.room = held + length
                c.start = 0
                c.end = held
            memcpy(c.data + c.end, PyBytes_AS_STRING(plain), length)
            c.end += length
            self.enlist(c)
        return 0

    cdef int finished(self, Connection* c) except -1:
        """Nothing more will come: what is here is still taken, then the connection is given up. What waits for it is
        given up at once: it could hold the very room that its last messages need."""
        c.eof = 1
        c.masked = 0
        if c.place == ON_BLOCKED:
            self.unblock(c)
        if not c.linger:
            self.broken(c)
        self.poll(c)
        self.enlist(c)
        return 0

    # -- intake: rounds ----------------------------------------------------------------------------------------

    cdef int admit(self, bint again) except -1:
        """May reading go on? If so, or to try `again` what found no room, put the blocked connections back in line."""
        cdef uint32_t i
        cdef Connection* c
        if self.overflow_count:
            self.push_overflow()
        if self.stopped and self.up.waiting_c() < self.resume_below:
            self.stopped = False
            self.up.unwant_c()
            again = True
        if again:
            self.stuck_ring = False
        if again and not self.stopped:
            for i in range(self.blocked_count):
                c = &self.connections[self.blocked[i]]
                c.place = ON_READY
                self.ready[self.ready_count] = c.index
                self.ready_count += 1
            self.blocked_count = 0
        self.allowance = 0
        return 0

    cdef bint may_take(self, Connection* c, bint stores) noexcept:
        """May one more entry of this connection be pushed? What still has to be stored waits for who starves."""
        cdef uint64_t waiting
        if stores and self.starving >= 0 and self.starving != <int64_t>c.index:
            return False
        if self.stuck_ring or self.overflow_count:
            return False
        if self.allowance > 0:
            return True
        if not self.stopped:
            waiting = self.up.waiting_c()
            if waiting < self.limit:
                self.allowance = <int64_t>(self.limit - waiting)
                return True
            self.stopped = True
            self.stop_number += 1
            self.n_stops += 1
        return c.one_more != self.stop_number

    cdef inline void taken(self, Connection* c, char* entry) noexcept:
        self.last_entry = entry
        self.n_messages_in += 1
        if self.allowance > 0:
            self.allowance -= 1
        elif self.stopped:
            c.one_more = self.stop_number
            self.n_one_more += 1
        if self.starving == <int64_t>c.index:
            self.starving = -1

    cdef int rounds(self) except -1:
        """Rounds over all connections with whole frames, until there are none, a limit is met or others should be read."""
        cdef uint32_t total = 0
        cdef uint32_t n, k, first, kept, at
        cdef uint64_t before
        cdef Connection* c
        while self.ready_count and total < PASS_MESSAGES:
            n = self.ready_count
            first = self.rotation % n
            self.rotation += 1
            self.last_entry = NULL
            before = self.n_messages_in
            for k in range(n):
                at = first + k
                if at >= n:
                    at -= n
                c = &self.connections[self.ready[at]]
                if c.place == ON_READY:
                    self.visit(c)
            kept = 0
            for k in range(n):
                if self.connections[self.ready[k]].place == ON_READY:
                    self.ready[kept] = self.ready[k]
                    kept += 1
            self.ready_count = kept
            if self.last_entry != NULL:
                (<uint8_t*>self.last_entry)[5] |= ROUND
                self.n_rounds += 1
            total += <uint32_t>(self.n_messages_in - before) if self.n_messages_in != before else 1
        return 0

    cdef int visit(self, Connection* c) except -1:
        cdef uint32_t taken = 0
        cdef uint32_t free_left = FREE_FRAMES
        cdef int result
        while True:
            result = self.step(c)
            if result == TOOK:
                taken += 1
                if taken >= self.messages_per_round:
                    return 0
            elif result == FREE:
                free_left -= 1
                if free_left == 0:
                    return 0
            elif result == BLOCKED:
                c.place = ON_BLOCKED
                self.blocked[self.blocked_count] = c.index
                self.blocked_count += 1
                self.shrink(c)
                return 0
            else:
                c.place = IDLE
                if c.fd < 0:
                    return 0
                if c.eof:
                    self.depart(c)
                    return 0
                self.shrink(c)
                c.overdraft = 0
                if c.masked and not (c.state < LIVE and c.end - c.start >= EARLY_BYTES):
                    c.masked = 0
                    self.poll(c)
                return 0

    cdef int step(self, Connection* c) except -1:
        """Deal with one frame of a connection, as far as it is there and may be taken."""
        cdef uint32_t held, length, n, topic, head
        cdef uint64_t section
        cdef uint8_t kind
        cdef char* f
        if c.deaf:
            self.drop_input(c)
            return NONE
        held = c.end - c.start
        if c.skip:
            n = c.skip if c.skip < held else held
            c.start += n
            c.skip -= n
            if c.skip:
                return NONE
            held -= n
        if c.handle:
            if c.frame_left:
                n = c.frame_left if c.frame_left < held else held
                memcpy(c.body + c.body_got, c.data + c.start, n)
                c.start += n
                c.body_got += n
                c.frame_left -= n
                held -= n
                if c.frame_left:
                    return NONE
            if c.body_got == c.body_total:
                return self.take_streamed(c)
        if c.state == PREFACE:
            return self.greet(c, held)
        if held < 32:
            return NONE
        if c.state != LIVE and c.state != CONFIRMED:
            return NONE
        f = c.data + c.start
        length = u32(f)
        kind = <uint8_t>f[4]
        topic = u16(f + 6)
        section = u32(f + 8)
        if length < 32:
            return self.refuse(c, "bad-request", "A frame is at least 32 bytes long.", f)
        if length > self.frame_max:
            return self.refuse(c, "frame-too-large", "", f)
        if 32 + topic + section > length:
            return self.refuse(c, "bad-request", "Topic and headers are longer than their frame.", f)
        head = <uint32_t>(32 + topic + section)
        if c.state == CONFIRMED:
            if kind != K_CONNECT or length > EARLY_BYTES:
                return self.refuse(c, "bad-request", "The first frame has to be a CONNECT of at most 16 KiB.", f)
            if held < length:
                return NONE
            c.state = CONNECTING
            self.events.append((c.index, "connect", f[head:length]))
            c.start += length
            return FREE
        if head > self.header_max:
            self.n_refused += 1
            self.complain(c, "header-too-large", "", f)
            c.drop_fragments = 1
            c.skip = length
            return FREE
        if K_PUBLISH <= kind <= K_SEND:
            if c.handle:
                return self.refuse(c, "bad-request", "A message may not begin before the last one is complete.", f)
            c.drop_fragments = 0
            if self.is_too_fast(c):
                return BLOCKED
            if kind == K_PUBLISH and held >= 32 + topic and self.may_be_diverted(c, f + 32, topic):
                if self.is_diverted(c, f + 32, topic):
                    return self.divert_publish(c, f, held, length, head)
            if (<uint8_t>f[5]) & F_FRAGMENTED:
                return self.begin(c, f, held, length, head, True)
            if length <= held:
                return self.take_message(c, f, length, head)
            if length <= SMALL_FRAME:
                return NONE
            return self.begin(c, f, held, length, head, False)
        if K_COMMAND <= kind <= K_DURABLE_LAST and not c.handle:
            return self.take_durable(c, f, held, length)
        if kind == K_FRAGMENT:
            if c.drop_fragments:
                c.skip = length
                return FREE
            if not c.handle or length - head > c.body_total - c.body_got or length == head:
                return self.refuse(c, "bad-request", "A fragment that belongs to no message, or is too long.", f)
            if held < head:
                return NONE
            c.start += head
            c.frame_left = length - head
            return FREE
        if kind == K_PING or kind == K_PONG or kind == K_CREDIT:
            if head != length:
                return self.refuse(c, "bad-request", "This frame has no body.", f)
            if held < length:
                return NONE
            if kind == K_PING:
                self.pong(c, u64(f + 16))
            elif kind == K_CREDIT:
                if not c.unlimited:
                    c.credit += u32(f + 12)
                    if c.waiting_count:
                        self.touch(c)
            c.start += length
            return FREE
        if c.handle:
            return self.refuse(c, "bad-request", "Only PING, PONG and CREDIT may come between fragments.", f)
        if K_SUBSCRIBE <= kind <= K_MOVE:
            if length > self.header_max:
                return self.refuse(c, "bad-request", "A control frame is at most as long as a header may be.", f)
            if held < length:
                return NONE
            if kind == K_CLOSE:
                c.eof = 1
                c.deaf = 1
                c.linger = 1
                self.poll(c)
                return NONE
            if topic == 0 and (kind == K_SUBSCRIBE or kind == K_REGISTER):
                return self.refuse(c, "bad-request", "This frame needs a topic.", f)
            return self.take_control(c, f, length)
        return self.refuse(c, "bad-request", "A frame of this kind makes no sense here.", f)

    cdef int greet(self, Connection* c, uint32_t held) except -1:
        """The first bytes: a TLS ClientHello, a preface, or somebody who wants another server."""
        cdef char* f = c.data + c.start
        if held == 0:
            return NONE
        if (<uint8_t>f[0]) == 0x16 and self.tls_possible and not c.tls:
            c.state = SECURING
            self.events.append((c.index, "tls", b""))
            return NONE
        if held < 8:
            if b"FLD\n".startswith(f[:min(held, 4)]):
                return NONE
            answer = preface_answer(f[:held] + bytes(8 - held))
        else:
            answer = preface_answer(f[:8])
        if answer is not None:
            self.n_refused += 1
            self.cut(c, answer[0], answer[1], True)
            return NONE
        c.start += 8
        c.state = ATTACHING
        self.events.append((c.index, "preface", b""))
        return NONE

    cdef char* entry_for(self, Connection* c, uint32_t content) noexcept:
        """Room in the up ring for one counted entry, or NULL."""
        cdef char* entry = self.up.reserve(UP_CONTENT + content, self.keep_free)
        if entry == NULL:
            self.stuck_ring = True
        return entry

    cdef inline void fill(self, Connection* c, char* entry, uint64_t handle, uint64_t body, char* head, uint32_t length) noexcept:
        (<uint64_t*>(entry + 16))[0] = c.uid
        (<uint64_t*>(entry + 24))[0] = handle
        (<uint32_t*>(entry + 32))[0] = c.index
        (<uint32_t*>(entry + 36))[0] = <uint32_t>body
        (<uint32_t*>(entry + 40))[0] = length
        (<uint32_t*>(entry + 44))[0] = 0
        memcpy(entry + UP_CONTENT, head, length)

    cdef int take_message(self, Connection* c, char* f, uint32_t length, uint32_t head) except -1:
        cdef int result = self.store_message(c, f, length, head)
        if result == TOOK:
            c.start += length
        return result

    cdef int store_message(self, Connection* c, char* f, uint32_t length, uint32_t head) except -1:
        cdef char* entry
        cdef uint64_t handle
        cdef uint32_t body = length - head
        if body > self.body_max:
            return self.too_large(c, f, length)
        if c.body_limit and body > c.body_limit:
            return self.over_quota(c, f, length)
        if not self.may_take(c, True):
            return BLOCKED
        entry = self.entry_for(c, head)
        if entry == NULL:
            return BLOCKED
        handle = self.own.alloc_c(body, c.index, c.uid)
        if handle == 0:
            self.starve(c)
            return BLOCKED
        memcpy(self.own.body_c(handle), f + head, body)
        self.fill(c, entry, handle, body, f, head)
        (<uint8_t*>(entry + UP_CONTENT))[5] &= ~<uint8_t>(F_IDENTITY | F_FRAGMENTED)
        self.own.refer_c(handle, self.up.tail)
        self.up.commit(entry, UP_CONTENT + head, UP_MESSAGE, COUNTED)
        self.taken(c, entry)
        self.charge(c, 1)
        return TOOK

    cdef int take_control(self, Connection* c, char* f, uint32_t length) except -1:
        cdef char* entry
        if not self.may_take(c, False):
            return BLOCKED
        entry = self.entry_for(c, length)
        if entry == NULL:
            return BLOCKED
        self.fill(c, entry, 0, 0, f, length)
        self.up.commit(entry, UP_CONTENT + length, UP_CONTROL, COUNTED)
        self.taken(c, entry)
        c.start += length
        return TOOK

    cdef int begin(self, Connection* c, char* f, uint32_t held, uint32_t length, uint32_t head, bint fragmented) except -1:
        """A body that arrives over several reads: its slot is taken for the whole of it at once."""
        cdef uint64_t total = length - head
        cdef uint32_t before = head
        cdef uint64_t handle
        if fragmented:
            if length - head < 8:
                return self.refuse(c, "bad-request", "A fragmented message begins its body with the total length.", f)
            before += 8
        if held < before:
            return NONE
        if fragmented:
            total = u64(f + head)
            if total < length - before or total == 0:
                return self.refuse(c, "bad-request", "The first piece is longer than the whole.", f)
        if total > self.body_max:
            return self.too_large(c, f, length)
        if c.body_limit and total > c.body_limit:
            return self.over_quota(c, f, length)
        if c.eof and held < length:
            return NONE                        # the rest will never come
        if not self.may_take(c, True):
            return BLOCKED
        handle = self.own.alloc_c(total, c.index, c.uid)
        if handle == 0:
            self.starve(c)
            return BLOCKED
        if self.starving == <int64_t>c.index:
            self.starving = -1
        c.head = <char*>malloc(head)
        if c.head == NULL:
            self.own.abandon_c(handle)
            raise MemoryError()
        memcpy(c.head, f, head)
        (<uint8_t*>c.head)[5] &= ~<uint8_t>(F_IDENTITY | F_FRAGMENTED)
        (<uint32_t*>c.head)[0] = <uint32_t>(head + total)
        c.head_length = head
        c.handle = handle
        c.body = self.own.body_c(handle)
        c.body_total = total
        c.body_got = 0
        c.frame_left = length - before
        c.start += before
        return FREE

    cdef int take_streamed(self, Connection* c) except -1:
        cdef char* entry
        if c.handle == LARGE:
            return self.take_large(c)
        if not self.may_take(c, False):
            return BLOCKED
        entry = self.entry_for(c, c.head_length)
        if entry == NULL:
            return BLOCKED
        self.fill(c, entry, c.handle, c.body_total, c.head, c.head_length)
        self.own.refer_c(c.handle, self.up.tail)
        self.up.commit(entry, UP_CONTENT + c.head_length, UP_MESSAGE, COUNTED)
        free(c.head)
        c.head = NULL
        c.handle = 0
        c.body = NULL
        self.charge(c, 1)
        self.taken(c, entry)
        return TOOK

    # -- the durable road --------------------------------------------------------------------------------------

    cdef inline bint may_be_diverted(self, Connection* c, char* topic, uint32_t length) noexcept:
        """Is it worth while to look whether this is a name of the message manager? Nearly always not."""
        cdef uint32_t bit
        cdef char whole[PREFIX_MAX + WHOLE_MAX]
        if c.prefix_length == 0:
            bit = name_bit(topic, length)
        else:
            if length > WHOLE_MAX:
                return self.name_count and is_joined(topic, length)
            memcpy(whole, c.prefix, c.prefix_length)
            memcpy(whole + c.prefix_length, topic, length)
            bit = name_bit(whole, c.prefix_length + length)
            if length == 6 and memcmp(topic, ADMIN, 6) == 0:
                return True
        return self.name_bits[bit >> 3] >> (bit & 7) & 1 or self.name_count and is_joined(topic, length)

    cdef bint is_diverted(self, Connection* c, char* topic, uint32_t length) except -1:
        """Is this, or one of these, a name of the message manager?"""
        if c.prefix_length == 0:
            return not self.names.isdisjoint(topic[:length].split(b"\x1f"))
        return any([self.whole(c, name) in self.names or name == b"_ADMIN" for name in topic[:length].split(b"\x1f")])

    cdef bytes whole(self, Connection* c, bytes name):
        """A name of this client as the server keeps it."""
        return c.prefix[:c.prefix_length] + name if c.prefix_length else name

    cdef inline bint is_too_fast(self, Connection* c) noexcept:
        """Has its user, or its tenant, sent so much that it has to wait? A second's worth may come at once."""
        cdef int i
        for i in range(2):
            if c.meter_cost[i] > 0 and self.meters[c.meter_slot[i]] > self.now + BURST_MS:
                if not c.slowed:
                    c.slowed = 1
                    self.n_slowed += 1
                return True
        c.slowed = 0
        return False

    cdef inline void charge(self, Connection* c, uint32_t messages) noexcept:
        cdef int i
        cdef double at
        for i in range(2):
            if c.meter_cost[i] > 0:
                at = self.meters[c.meter_slot[i]]
                if at < self.now:
                    at = self.now
                self.meters[c.meter_slot[i]] = at + messages * c.meter_cost[i]

    cdef bint is_held_up(self, Connection* c) except -1:
        """Must its next frame for the message manager wait? For Python, which has the one before, or for the link."""
        if c.awaits == self.turn_number:
            self.asked = True
            return True
        if not self.link_choked and self.link_out_end - self.link_out_start > LINK_HIGH:
            self.link_choked = True
            self.n_link_chokes += 1
        c.choked = self.link_choked
        return c.choked

    cdef int take_durable(self, Connection* c, char* f, uint32_t held, uint32_t length) except -1:
        """A frame for the message manager: copied, unread; only a COMMAND is Python's business first."""
        cdef uint8_t kind = <uint8_t>f[4]
        if kind > K_MORE or kind == K_COMMAND and length > COMMAND_MAX:
            self.n_refused += 1
            self.complain(c, "bad-request", "There is no such command, or it is longer than 64 KiB.", f)
            c.skip = length
            return FREE
        if self.is_held_up(c) or kind == K_STORE and self.is_too_fast(c):
            return BLOCKED
        if held < length:
            return NONE if length <= SMALL_FRAME else self.begin_large(c, f, held, length)
        if kind == K_STORE:
            self.charge_store(c, f, length)
        c.start += length
        c.durable = 1
        if kind == K_COMMAND:
            self.ask(c, "command", f[:length])
        elif self.link_fd < 0:
            self.n_link_dropped += 1           # its client was told, and sends again when the link is back
        else:
            self.n_durable_in += 1
            memcpy(self.link_room(c.index, c.uid, length), f, length)
        return TOOK

    cdef inline void charge_store(self, Connection* c, char* f, uint32_t length) noexcept:
        """A STORE says at the beginning of its body how many messages it brings."""
        cdef uint32_t head = 32 + u16(f + 6) + u32(f + 8)
        self.charge(c, min(u32(f + head), <uint32_t>65536) if head + 4 <= length else 1)

    cdef int ask(self, Connection* c, str what, bytes frame) except -1:
        """Python decides; what this connection sends to the message manager behind it waits for that."""
        c.awaits = self.turn_number
        self.events.append((c.index, what, frame))
        return 0

    cdef int begin_large(self, Connection* c, char* f, uint32_t held, uint32_t length) except -1:
        """A frame for the message manager that is longer than the input buffer: it is gathered beside it."""
        if c.eof:
            return NONE                        # the rest will never come
        if self.large_bytes + length > LARGE_BYTES:
            c.choked = 1
            return BLOCKED
        c.body = <char*>malloc(length)
        if c.body == NULL:
            raise MemoryError()
        self.large_bytes += length
        c.handle = LARGE
        c.body_total = c.frame_left = length
        c.body_got = 0
        return FREE

    cdef int take_large(self, Connection* c) except -1:
        """The last byte of such a frame has come."""
        cdef char* f = c.body
        cdef uint32_t length = <uint32_t>c.body_total
        cdef uint32_t rest = 0
        cdef int result = TOOK
        if self.is_held_up(c):
            return BLOCKED
        c.durable = 1
        if <uint8_t>f[4] == K_PUBLISH:
            if self.is_diverted(c, f + 32, u16(f + 6)):
                rest = self.send_diverted(c, f, length, 32 + u16(f + 6) + u32(f + 8))
                if rest:
                    memmove(f, f + length - rest, rest)
                    self.large_bytes -= length - rest
                    c.body_total = c.body_got = rest
            else:
                rest = length
            if rest:
                result = self.store_message(c, f, rest, 32 + u16(f + 6) + u32(f + 8))
                if result == BLOCKED:
                    return BLOCKED
        elif self.link_fd < 0:
            self.n_link_dropped += 1
        else:
            self.n_durable_in += 1
            if <uint8_t>f[4] == K_STORE:
                self.charge_store(c, f, length)
            memcpy(self.link_room(c.index, c.uid, length), f, length)
        self.drop_large(c)
        return TOOK

    cdef void drop_large(self, Connection* c) noexcept:
        self.large_bytes -= c.body_total
        free(c.body)
        c.body = NULL
        c.handle = 0
        c.frame_left = 0

    cdef int divert_publish(self, Connection* c, char* f, uint32_t held, uint32_t length, uint32_t head) except -1:
        """A transient publish to a name of the message manager."""
        cdef uint32_t rest
        if (<uint8_t>f[5]) & F_FRAGMENTED:
            self.n_refused += 1
            self.complain(c, "body-too-large", "Send a body of this size to the destination itself, not to its topic.", f)
            c.drop_fragments = 1
            c.skip = length
            return FREE
        if length - head > self.body_max:
            return self.too_large(c, f, length)
        if c.body_limit and length - head > c.body_limit:
            return self.over_quota(c, f, length)
        if self.is_held_up(c):
            return BLOCKED
        if held < length:
            return NONE if length <= SMALL_FRAME else self.begin_large(c, f, held, length)
        rest = self.send_diverted(c, f, length, head)
        c.start += length - rest               # what is for the router only stands at the end of it now
        return TOOK

    cdef uint32_t send_diverted(self, Connection* c, char* f, uint32_t length, uint32_t head) except? 0xFFFFFFFF:
        """A copy a name to the link; the other names, if any, stay in a frame at the end of these bytes: its length."""
        cdef uint32_t topic = u16(f + 6)
        cdef uint32_t moved
        cdef bytes name, others
        cdef list kept = []
        self.n_diverted += 1
        self.charge(c, 1)
        for name in f[32:32 + topic].split(b"\x1f"):
            if self.whole(c, name) in self.names or c.prefix_length and name == b"_ADMIN":
                self.send_named(c, f, length, head, self.whole(c, name))
            else:
                kept.append(name)
        if not kept:
            return 0
        others = b"\x1f".join(kept)
        moved = topic - <uint32_t>len(others)
        memmove(f + moved, f, 32)
        memcpy(f + moved + 32, PyBytes_AS_STRING(others), len(others))
        (<uint32_t*>(f + moved))[0] = length - moved
        (<uint16_t*>(f + moved + 6))[0] = <uint16_t>len(others)
        return length - moved

    cdef int send_named(self, Connection* c, char* f, uint32_t length, uint32_t head, bytes name) except -1:
        """The frame with this one topic, its sender's user among the headers."""
        cdef bytes pair = self.pairs.get(c.index, b"")
        cdef uint32_t topic = <uint32_t>PyBytes_GET_SIZE(name)
        cdef uint32_t before = 32 + u16(f + 6)
        cdef uint32_t extra = <uint32_t>PyBytes_GET_SIZE(pair)
        cdef uint32_t size = 32 + topic + extra + length - before
        cdef bytes frame
        cdef char* at
        cdef bint asks = (c.restricted or name[:1] == b"_") and name not in self.cleared.get(c.index, ())
        if self.link_fd < 0:
            self.n_link_dropped += 1
            return self.complain(c, "no-message-manager", "", f)
        if asks:
            frame = bytes(size)
            at = PyBytes_AS_STRING(frame)
        else:
            self.n_durable_in += 1
            at = self.link_room(c.index, c.uid, size)
        memcpy(at, f, 32)
        (<uint32_t*>at)[0] = size
        (<uint8_t*>at)[5] &= ~<uint8_t>(F_IDENTITY | F_FRAGMENTED)
        if extra:
            (<uint8_t*>at)[5] |= F_IDENTITY
        (<uint16_t*>(at + 6))[0] = <uint16_t>topic
        (<uint32_t*>(at + 8))[0] = u32(f + 8) + extra
        (<uint64_t*>(at + 24))[0] = c.uid
        memcpy(at + 32, PyBytes_AS_STRING(name), topic)
        memcpy(at + 32 + topic, PyBytes_AS_STRING(pair), extra)
        memcpy(at + 32 + topic + extra, f + before, length - before)
        c.durable = 1
        if asks:
            self.ask(c, "publish", frame)
        return 0

    # -- the link ----------------------------------------------------------------------------------------------

    cdef char* link_room(self, uint32_t index, uint64_t uid, uint32_t length) except NULL:
        """Room for one frame in the link's output, behind its envelope."""
        cdef uint64_t held = self.link_out_end - self.link_out_start
        cdef uint64_t room = self.link_out_room
        cdef char* grown
        cdef char* at
        if self.link_out_end + ENVELOPE + length > room:
            if held + ENVELOPE + length <= room and self.link_out_start >= room // 2:
                memmove(self.link_out, self.link_out + self.link_out_start, held)
            else:
                while room < held + ENVELOPE + length:
                    room *= 2
                grown = <char*>malloc(room)
                if grown == NULL:
                    raise MemoryError()
                memcpy(grown, self.link_out + self.link_out_start, held)
                free(self.link_out)
                self.link_out = grown
                self.link_out_room = room
            self.link_out_start = 0
            self.link_out_end = held
        at = self.link_out + self.link_out_end
        (<uint32_t*>at)[0] = ENVELOPE + length
        (<uint32_t*>(at + 4))[0] = index
        (<uint64_t*>(at + 8))[0] = uid
        self.link_out_end += ENVELOPE + length
        return at + ENVELOPE

    cdef int flush_link(self) except -1:
        """One send of everything gathered for the message manager."""
        cdef ssize_t n = send(self.link_fd, self.link_out + self.link_out_start,
                              self.link_out_end - self.link_out_start, MSG_DONTWAIT | MSG_NOSIGNAL)
        if n < 0:
            if errno == EAGAIN:
                self.link_blocked = True
            elif errno != EINTR:
                self.lose_link()
                return 0
        else:
            self.link_out_start += n
            if self.link_out_start == self.link_out_end:
                self.link_out_start = self.link_out_end = 0
                if self.link_out_room > 4 * LINK_BYTES:
                    free(self.link_out)
                    self.link_out_room = LINK_BYTES
                    self.link_out = <char*>malloc(LINK_BYTES)
                    if self.link_out == NULL:
                        raise MemoryError()
            else:
                self.link_blocked = True
        if self.link_choked and self.link_out_end - self.link_out_start < LINK_LOW:
            self.link_choked = False
        self.poll_link()
        return 0

    cdef void poll_link(self) noexcept:
        cdef epoll_event event
        cdef uint32_t wanted = 0 if self.link_stuck else EPOLLIN
        if self.link_fd < 0:
            return
        if self.link_blocked:
            wanted |= EPOLLOUT
        if wanted != self.link_interest:
            event.events = self.link_interest = wanted
            event.data.u64 = (<uint64_t>3 << 62) | self.link_generation
            epoll_ctl(self.epoll, EPOLL_CTL_MOD, self.link_fd, &event)

    cdef int receive_link(self) except -1:
        """One recv from the message manager."""
        cdef uint64_t held = self.link_in_end - self.link_in_start
        cdef uint64_t wanted = LINK_BYTES
        cdef char* grown
        cdef ssize_t n
        if held >= 4 and u32(self.link_in + self.link_in_start) > wanted // 2:
            wanted = <uint64_t>u32(self.link_in + self.link_in_start) + LINK_BYTES // 2
        if self.link_in_room < wanted or held == 0 and self.link_in_room > 4 * LINK_BYTES:
            grown = <char*>malloc(wanted)
            if grown == NULL:
                raise MemoryError()
            memcpy(grown, self.link_in + self.link_in_start, held)
            free(self.link_in)
            self.link_in = grown
            self.link_in_room = wanted
        elif self.link_in_start:
            memmove(self.link_in, self.link_in + self.link_in_start, held)
        self.link_in_start = 0
        self.link_in_end = held
        if self.link_in_end == self.link_in_room:
            return 0
        n = recv(self.link_fd, self.link_in + self.link_in_end, self.link_in_room - self.link_in_end, MSG_DONTWAIT)
        if n < 0 and (errno == EAGAIN or errno == EINTR):
            return 0
        if n <= 0:
            return self.lose_link()
        self.link_in_end += n
        return self.take_link()

    cdef int take_link(self) except -1:
        """Hand on every whole frame from the message manager, unless a broadcast has to wait for room."""
        cdef char* e
        cdef char* f
        cdef char* last = NULL
        cdef uint32_t length
        cdef uint64_t uid
        cdef Connection* c
        cdef bytes bare
        self.link_stuck = False
        while self.link_in_end - self.link_in_start >= ENVELOPE + 32:
            e = self.link_in + self.link_in_start
            f = e + ENVELOPE
            length = u32(f)
            if u32(e) != ENVELOPE + <uint64_t>length or length < 32 or length > LINK_FRAME_MAX or (
                    32 + <uint64_t>u16(f + 6) + u32(f + 8) > length):
                self.lose_link()               # not our language: begin anew
                break
            if self.link_in_end - self.link_in_start < ENVELOPE + <uint64_t>length:
                break
            uid = u64(e + 8)
            if uid:
                c = self.find(u32(e + 4), uid)
                if c == NULL or not self.takes_durable(c):
                    self.n_link_strays += 1
                else:
                    c.durable = 1
                    self.n_durable_out += 1
                    if c.prefix_length and <uint8_t>f[4] in (K_ANSWER, K_NOTICE, K_ERROR):
                        bare = without(f[:length], c.prefix[:c.prefix_length])
                        self.put_durable(c, PyBytes_AS_STRING(bare), <uint32_t>PyBytes_GET_SIZE(bare))
                    else:
                        self.put_durable(c, f, length)
            elif <uint8_t>f[4] == K_PUBLISH:
                if not self.push_broadcast(f, length, &last):
                    self.link_stuck = True
                    break
            else:
                self.events.append((-1, "link", f[:length]))
            self.link_in_start += ENVELOPE + length
        if last != NULL:
            (<uint8_t*>last)[5] |= ROUND
            self.n_rounds += 1
        self.poll_link()
        return 0

    cdef bint push_broadcast(self, char* f, uint32_t length, char** last) except -1:
        """A message of a topic for the transient subscribers; False: there is no room now."""
        cdef uint32_t head = 32 + u16(f + 6) + u32(f + 8)
        cdef uint32_t body = length - head
        cdef uint64_t waiting, handle
        cdef char* entry
        if body > self.body_max or head > self.header_max:
            self.n_link_strays += 1
            return True
        if self.stopped or self.stuck_ring or self.overflow_count or self.starving >= 0:
            return False
        if self.allowance <= 0:
            waiting = self.up.waiting_c()
            if waiting >= self.limit:
                return False
            self.allowance = <int64_t>(self.limit - waiting)
        entry = self.up.reserve(UP_CONTENT + head, self.keep_free)
        if entry == NULL:
            return False
        handle = self.own.alloc_c(body, 0, 0)
        if handle == 0:
            return False
        memcpy(self.own.body_c(handle), f + head, body)
        (<uint64_t*>(entry + 16))[0] = 0
        (<uint64_t*>(entry + 24))[0] = handle
        (<uint32_t*>(entry + 32))[0] = 0
        (<uint32_t*>(entry + 36))[0] = body
        (<uint32_t*>(entry + 40))[0] = head
        (<uint32_t*>(entry + 44))[0] = 0
        memcpy(entry + UP_CONTENT, f, head)
        (<uint8_t*>(entry + UP_CONTENT))[5] &= ~<uint8_t>F_FRAGMENTED
        self.own.refer_c(handle, self.up.tail)
        self.up.commit(entry, UP_CONTENT + head, UP_MESSAGE, COUNTED)
        self.n_messages_in += 1
        self.allowance -= 1
        last[0] = entry
        return True

    cdef inline bint takes_durable(self, Connection* c) noexcept:
        return c.state == LIVE and not (c.hurt or c.linger or c.detaching)

    cdef int put_durable(self, Connection* c, char* data, uint32_t length) except -1:
        """Frames of the message manager: in order among themselves, not held up by credit for transient messages."""
        cdef OutBuffer* o
        cdef uint64_t held = c.more_end - c.more_start
        cdef uint64_t room
        cdef char* grown
        cdef uint32_t sent = 0
        cdef bint bulk = <uint8_t>data[4] == K_COLUMNS
        if length >= STRAIGHT_BYTES and held == 0 and not c.tls and not c.write_blocked and self.is_clear(c):
            sent = self.send_straight(c, data, length)
            if sent == length or c.hurt:
                return 0
            data += sent
            length -= sent
            c.more_left = length if sent else 0
        if held == 0 and not sent and not c.emitting and (c.waiting_count == 0 or self.out_of_credit(c)) and self.fits(c, length):
            o = c.out
            memcpy(o.data + o.end, data, length)
            o.end += length
            c.queued += length
            self.touch(c)
            return 0
        if c.hurt:
            return 0
        if held > self.slow_bytes + (BULK_SLACK if bulk else 0):
            return self.too_slow(c)
        if c.more_end + length > c.more_room:
            room = c.more_room if c.more_room else 16384
            while room < held + length:
                room *= 2
            if room != c.more_room or c.more_start < c.more_room // 2:
                if room == c.more_room:
                    room *= 2
                grown = <char*>malloc(room)
                if grown == NULL:
                    raise MemoryError()
                memcpy(grown, c.more + c.more_start, held)
                free(c.more)
                c.more = grown
                c.more_room = room
            else:
                memmove(c.more, c.more + c.more_start, held)
            c.more_start = 0
            c.more_end = held
        memcpy(c.more + c.more_end, data, length)
        c.more_end += length
        self.touch(c)
        if bulk and held + length > FULL_BYTES and c.full != self.link_generation:
            c.full = self.link_generation
            self.tell_of(c, FULL)
        return 0

    cdef inline bint is_clear(self, Connection* c) noexcept:
        """Is nothing gathered for it, nor waiting, but for frames of the message manager?"""
        return (not c.hurt and not c.emitting and c.waiting_count == 0
                and (c.out == NULL or c.out.start == c.out.end and c.out.mark_count == 0))

    cdef uint32_t send_straight(self, Connection* c, char* data, uint64_t length) except? 0xFFFFFFFF:
        """From where it lies; how many bytes were taken."""
        cdef ssize_t n = send(c.fd, data, length, MSG_DONTWAIT | MSG_NOSIGNAL)
        if n < 0:
            if errno == EAGAIN:
                c.write_blocked = 1
                self.touch(c)
            elif errno != EINTR:
                self.broken(c)
            return 0
        if <uint64_t>n < length:
            c.write_blocked = 1
            self.touch(c)
        c.sent_ms = self.now
        c.queued += n
        c.sent += n
        self.n_bytes_out += n
        return <uint32_t>n

    cdef int flush_more(self, Connection* c) except -1:
        """Send what waits of the message manager from where it lies."""
        cdef uint64_t n = self.send_straight(c, c.more + c.more_start, c.more_end - c.more_start)
        cdef uint64_t step
        while n:
            if c.more_left == 0:
                c.more_left = u32(c.more + c.more_start)
            step = n if n < c.more_left else c.more_left
            c.more_start += step
            c.more_left -= <uint32_t>step
            n -= step
        if c.more_start == c.more_end:
            self.drop_more(c)
        return 0

    cdef int relieve(self, Connection* c) except -1:
        """It reads again: the message manager hears of it."""
        if c.full and c.more_end - c.more_start <= ROOM_BYTES:
            if c.full == self.link_generation:
                self.tell_of(c, ROOM)
            c.full = 0
        return 0

    cdef int tell_of(self, Connection* c, bytes what) except -1:
        """The message manager hears something about a connection it knows."""
        if self.link_fd >= 0:
            memcpy(self.link_room(c.index, c.uid, <uint32_t>PyBytes_GET_SIZE(what)),
                   PyBytes_AS_STRING(what), PyBytes_GET_SIZE(what))
        return 0

    cdef void drop_more(self, Connection* c) noexcept:
        free(c.more)
        c.more = NULL
        c.more_start = c.more_end = c.more_room = 0
        c.more_left = 0

    cdef int lose_link(self) except -1:
        """It is gone: Python connects anew."""
        self.drop_link()
        self.events.append((-1, "link-lost", b""))
        return 0

    cdef void drop_link(self) noexcept:
        if self.link_fd < 0:
            return
        epoll_ctl(self.epoll, EPOLL_CTL_DEL, self.link_fd, NULL)
        c_close(self.link_fd)
        self.link_fd = -1
        self.link_in_start = self.link_in_end = self.link_out_start = self.link_out_end = 0
        self.link_blocked = self.link_choked = self.link_stuck = False

    cdef int say_gone(self, Connection* c) except -1:
        """The message manager hears that a connection it knows has ended."""
        if c.durable:
            self.tell_of(c, GONE)
        self.pairs.pop(c.index, None)
        self.cleared.pop(c.index, None)
        return 0

    cdef void starve(self, Connection* c) noexcept:
        if self.starving < 0:
            self.n_starved += 1
        self.starving = c.index

    cdef int too_large(self, Connection* c, char* f, uint32_t length) except -1:
        self.n_refused += 1
        self.complain(c, "body-too-large", "", f)
        c.drop_fragments = 1
        c.skip = length
        return FREE

    cdef int over_quota(self, Connection* c, char* f, uint32_t length) except -1:
        self.n_refused += 1
        self.n_over_quota += 1
        self.complain(c, "quota-exceeded", OVER_QUOTA % c.body_limit, f)
        c.drop_fragments = 1
        c.skip = length
        return FREE

    cdef int complain(self, Connection* c, str code, str text, char* f) except -1:
        """Tell the client what was wrong with one frame; the connection stays."""
        frame = error_frame(code, text, u32(f + 12), u64(f + 16))
        self.put_plain(c, PyBytes_AS_STRING(frame), <uint32_t>PyBytes_GET_SIZE(frame), False, False)
        return 0

    cdef int refuse(self, Connection* c, str code, str text, char* f) except -1:
        """The client broke the rules: say which, and close."""
        self.n_refused += 1
        self.cut(c, code, error_frame(code, text, 0, 0), True)
        return NONE

    cdef int push_uncounted(self, int kind, uint64_t uid, uint32_t index, bytes content) except -1:
        if self.overflow_count or not self.push_now(kind, uid, index, content):
            self.overflow.append((kind, uid, index, content))
            self.overflow_count += 1
        return 0

    cdef bint push_now(self, int kind, uint64_t uid, uint32_t index, bytes content) except -1:
        cdef uint32_t length = <uint32_t>PyBytes_GET_SIZE(content)
        cdef char* entry = self.up.reserve(UP_CONTENT + length, 0)
        if entry == NULL:
            return False
        (<uint64_t*>(entry + 16))[0] = uid
        (<uint64_t*>(entry + 24))[0] = 0
        (<uint32_t*>(entry + 32))[0] = index
        (<uint32_t*>(entry + 36))[0] = 0
        (<uint32_t*>(entry + 40))[0] = length
        (<uint32_t*>(entry + 44))[0] = 0
        memcpy(entry + UP_CONTENT, PyBytes_AS_STRING(content), length)
        self.up.commit(entry, UP_CONTENT + length, kind, 0)
        return True

    cdef int push_overflow(self) except -1:
        while self.overflow:
            kind, uid, index, content = self.overflow[0]
            if not self.push_now(kind, uid, index, content):
                break
            self.overflow.popleft()
            self.overflow_count -= 1
        return 0

    # -- delivery ----------------------------------------------------------------------------------------------

    cdef int drain(self) except -1:
        """Carry out what the router ordered, send it, account for it, and only then give the entries back."""
        cdef uint32_t entries = 0
        cdef uint64_t began = self.down.cursor
        cdef char* entry
        self.batch_count = 0
        while entries < DRAIN_ENTRIES and self.down.cursor - began < DRAIN_BYTES:
            entry = self.down.next_c()
            if entry == NULL:
                break
            self.instruct(entry)
            self.down.advance_c(entry)
            entries += 1
        self.flush_all()
        if entries:
            self.n_instructions += entries
            self.record_batch()
            if self.down.publish_c(<uint64_t>1 << 62):      # whatever waits, there is room now
                self.ring_router()
        return 0

    cdef int record_batch(self) except -1:
        """What could not be finished at once goes to the outstanding table, where a successor finds it."""
        cdef uint32_t k, i
        cdef Instruction* instruction
        cdef char* record
        for k in range(self.batch_count):
            i = self.batch[k]
            if self.instructions[i].handle == 0 or self.instructions[i].record >= 0:
                continue
            while self.table_free_count == 0 and self.instructions[i].handle:
                if not self.cut_slowest():
                    raise RuntimeError("the outstanding table is full although no client waits")
            instruction = &self.instructions[i]
            if instruction.handle == 0:
                continue
            if instruction.limit:
                (<Arena>self.arena_of[instruction.handle >> 56]).set_limit_c(instruction.handle, instruction.limit)
            self.table_free_count -= 1
            instruction.record = <int32_t>self.table_free[self.table_free_count]
            record = self.table + 16 * <uint64_t>instruction.record
            (<uint8_t*>record)[8] = instruction.touch
            (<uint8_t*>record)[9] = instruction.limit
            ft_store(record, instruction.handle)
        return 0

    cdef bint cut_slowest(self) except -1:
        cdef uint32_t i
        cdef uint64_t most = 0
        cdef Connection* worst = NULL
        for i in range(self.highest):
            if self.connections[i].fd >= 0 and self.count_waiting(&self.connections[i]) > most:
                most = self.count_waiting(&self.connections[i])
                worst = &self.connections[i]
        if worst == NULL:
            return False
        self.too_slow(worst)
        self.drop_output(worst)
        return True

    cdef uint32_t open_instruction(self, uint64_t handle, uint8_t touch, uint8_t limit) except? 0xFFFFFFFE:
        cdef uint32_t i, room
        cdef Instruction* grown
        cdef uint32_t* longer
        if self.instructions_free == NO_INSTRUCTION:
            room = self.instructions_room * 2 if self.instructions_room else 1024
            grown = <Instruction*>realloc(self.instructions, room * sizeof(Instruction))
            if grown == NULL:
                raise MemoryError()
            self.instructions = grown
            for i in range(self.instructions_room, room):
                grown[i].handle = 0
                grown[i].following = self.instructions_free
                self.instructions_free = i
            self.instructions_room = room
        if self.batch_count == self.batch_room:
            room = self.batch_room * 2 if self.batch_room else 2048
            longer = <uint32_t*>realloc(self.batch, room * sizeof(uint32_t))
            if longer == NULL:
                raise MemoryError()
            self.batch = longer
            self.batch_room = room
        i = self.instructions_free
        self.instructions_free = self.instructions[i].following
        self.instructions[i].handle = handle
        self.instructions[i].remaining = 1
        self.instructions[i].record = -1
        self.instructions[i].touch = touch
        self.instructions[i].limit = limit
        self.batch[self.batch_count] = i
        self.batch_count += 1
        self.instructions_open += 1
        return i

    cdef inline void share_done(self, uint32_t i) noexcept:
        """One recipient less; the last one finishes the instruction."""
        cdef Instruction* instruction
        if i == NO_INSTRUCTION:
            return
        instruction = &self.instructions[i]
        instruction.remaining -= 1
        if instruction.remaining == 0:
            if (<Arena>self.arena_of[instruction.handle >> 56]).finish_c(
                    instruction.handle, instruction.touch, instruction.limit) == FINISH_FAULT:
                self.n_faults += 1
            if instruction.record >= 0:
                ft_store(self.table + 16 * <uint64_t>instruction.record, 0)
                self.table_free[self.table_free_count] = <uint32_t>instruction.record
                self.table_free_count += 1
            instruction.handle = 0
            instruction.following = self.instructions_free
            self.instructions_free = i
            self.instructions_open -= 1

    cdef int instruct(self, char* entry) except -1:
        cdef uint8_t kind = <uint8_t>entry[4]
        cdef uint64_t handle = u64(entry + 16)
        cdef uint8_t touch = <uint8_t>entry[24]
        cdef uint8_t limit = <uint8_t>entry[25]
        cdef uint32_t recipients = u32(entry + 28)
        cdef uint32_t content_length = u32(entry + 32)
        cdef uint32_t body_length = u32(entry + 36)
        cdef char* content = entry + 40 + 8 * <uint64_t>recipients
        cdef uint64_t recipient
        cdef uint32_t i, k
        cdef Connection* c
        cdef Arena arena
        cdef char* body = NULL
        cdef Head* head = NULL
        if kind == DOWN_PLAIN or kind == DOWN_DETACH:
            for k in range(recipients):
                recipient = u64(entry + 40 + 8 * <uint64_t>k)
                c = self.recipient(recipient)
                if c != NULL:
                    self.plain(c, content, content_length, kind == DOWN_DETACH)
            return 0
        if kind != DOWN_DELIVER and kind != DOWN_DELETE:
            self.n_faults += 1
            return 0
        if self.arena_of[handle >> 56] == NULL:
            self.n_faults += 1
            return 0
        arena = <Arena>self.arena_of[handle >> 56]
        if kind == DOWN_DELETE or recipients == 0:
            if arena.finish_c(handle, touch, limit) == FINISH_FAULT:
                self.n_faults += 1
            return 0
        if content_length < 32:
            self.n_faults += 1
            arena.finish_c(handle, touch, limit)
            return 0
        body = arena.body_c(handle)
        if body == NULL:
            self.n_faults += 1
            return 0
        i = self.open_instruction(handle, touch, limit)
        for k in range(recipients):
            recipient = u64(entry + 40 + 8 * <uint64_t>k)
            c = self.recipient(recipient)
            if c == NULL or c.state != LIVE or c.hurt or c.detaching or c.linger:
                self.undelivered(content, content_length, <uint32_t>(recipient >> 32),
                                 c.uid if c != NULL else recipient & 0xFFFFFFFF)
                continue
            self.instructions[i].remaining += 1
            head = self.deliver(c, i, content, content_length, body, body_length, head)
        if head != NULL:
            self.release(head)
        self.share_done(i)
        return 0

    cdef inline Connection* recipient(self, uint64_t word) noexcept:
        cdef uint32_t index = <uint32_t>(word >> 32)
        cdef Connection* c
        if index >= self.capacity:
            return NULL
        c = &self.connections[index]
        if c.fd < 0 or <uint32_t>c.uid != <uint32_t>word or c.state >= CLOSING:
            return NULL
        return c

    cdef int undelivered(self, char* head, uint32_t length, uint32_t index, uint64_t uid) except -1:
        """A request, or a one-way message whose sender wants to know, was not handed over: the router hears of it."""
        cdef uint8_t kind = <uint8_t>head[4]
        self.n_lost += 1
        if kind == K_REQUEST or kind == K_CONVERSE or kind == K_FANOUT or (kind == K_SEND and u64(head + 16)):
            self.n_undelivered += 1
            self.push_uncounted(UP_UNDELIVERED, uid, index, head[:length])
        return 0

    cdef int plain(self, Connection* c, char* content, uint32_t length, bint last) except -1:
        """Frames the router made: CONFIRM and WELCOME move the handshake on."""
        cdef uint32_t at = 0
        cdef uint32_t size
        cdef uint8_t kind
        cdef bint ordered = last
        while at + 32 <= length:
            size = u32(content + at)
            kind = <uint8_t>content[at + 4]
            if kind == K_CONFIRM and c.state == ATTACHING:
                c.state = CONFIRMED
                c.since_ms = self.now
                self.awaited(c)
            elif kind == K_WELCOME and c.state == CONNECTING:
                c.state = LIVE
                c.heard_ms = self.now
                self.n_live += 1
                self.events.append((c.index, "live", b""))
                self.awaited(c)
            elif kind == K_MOVED:
                ordered = True
            if size < 32:
                break
            at += size
        if last:
            c.detaching = 1
            c.deaf = 1
            c.since_ms = self.now
        self.put_plain(c, content, length, ordered, last)
        return 0

    cdef void awaited(self, Connection* c) noexcept:
        """The handshake went on: look at what was sent ahead of it."""
        if c.end > c.start:
            self.enlist(c)
        if c.masked:
            c.masked = 0
            self.poll(c)

    cdef OutBuffer* out_of(self, Connection* c) except NULL:
        cdef OutBuffer* o = c.out
        if o == NULL:
            if self.out_pool != NULL:
                o = self.out_pool
                self.out_pool = o.following
                self.out_pool_count -= 1
            else:
                o = <OutBuffer*>malloc(sizeof(OutBuffer))
                if o == NULL:
                    raise MemoryError()
            o.start = o.end = o.mark_first = o.mark_count = 0
            c.out = o
        return o

    cdef void free_out(self, Connection* c) noexcept:
        if c.out == NULL:
            return
        if self.out_pool_count < POOL_MAX:
            c.out.following = self.out_pool
            self.out_pool = c.out
            self.out_pool_count += 1
        else:
            free(c.out)
        c.out = NULL

    cdef bint fits(self, Connection* c, uint32_t length) except -1:
        """Room for so many bytes and one mark in the output, if need be after sending what is there."""
        cdef OutBuffer* o = self.out_of(c)
        if o.end + length <= OUT_BYTES and o.mark_count < MARKS:
            return True
        if length > OUT_BYTES:
            return False
        if not c.write_blocked and not c.tls:
            self.flush(c, False)
            if c.hurt:
                return False
            o = self.out_of(c)
        if o.end + length > OUT_BYTES and o.start:
            memmove(o.data, o.data + o.start, o.end - o.start)
            o.end -= o.start
            o.start = 0
        return o.end + length <= OUT_BYTES and o.mark_count < MARKS

    cdef inline void mark(self, Connection* c, uint32_t instruction, uint32_t size) noexcept:
        cdef OutBuffer* o = c.out
        cdef Mark* m = &o.marks[(o.mark_first + o.mark_count) % MARKS]
        m.end = c.queued
        m.instruction = instruction
        m.size = size
        o.mark_count += 1

    cdef Head* deliver(self, Connection* c, uint32_t i, char* content, uint32_t length, char* body, uint32_t body_length,
                       Head* head) except? NULL:
        """Hand one delivery to one connection: into its buffer, or behind what waits there already."""
        cdef uint32_t total = length + body_length
        cdef OutBuffer* o
        cdef char* at
        self.n_deliveries += 1
        if (c.waiting_count == 0 and c.more_end == c.more_start and body_length <= PIECE and self.has_credit(c)
                and self.fits(c, total)):
            o = c.out
            at = o.data + o.end
            memcpy(at, content, length)
            memcpy(at + length, body, body_length)
            (<uint32_t*>at)[0] = total
            (<uint8_t*>at)[5] &= ~<uint8_t>F_FRAGMENTED
            o.end += total
            c.queued += total
            c.credit -= 1
            self.mark(c, i, total)
            self.touch(c)
            if c.write_blocked and (o.mark_count > self.slow_messages or o.end - o.start > self.slow_bytes):
                self.too_slow(c)
            return head
        if c.hurt:
            self.share_done(i)
            self.undelivered(content, length, c.index, c.uid)
            return head
        if head == NULL:
            head = self.keep(content, length, body_length, body, False, False)
        self.queue(c, head, i)
        return head

    cdef Head* keep(self, char* content, uint32_t length, uint32_t body_length, char* body, bint plain, bint last) except NULL:
        cdef Head* head = <Head*>malloc(sizeof(Head) + length)
        if head == NULL:
            raise MemoryError()
        head.references = 1
        head.length = 0 if plain else length   # router-made frames of any length go out like a body
        head.body_length = length if plain else body_length
        head.body = &head.data[0] if plain else body
        head.plain = plain
        head.last = last
        memcpy(head.data, content, length)
        if not plain:
            (<uint8_t*>head.data)[5] &= ~<uint8_t>F_FRAGMENTED
        return head

    cdef void release(self, Head* head) noexcept:
        head.references -= 1
        if head.references == 0:
            free(head)

    cdef int queue(self, Connection* c, Head* head, uint32_t instruction) except -1:
        cdef uint32_t room, k
        cdef Waiting* grown
        if c.waiting_count == c.waiting_room:
            room = c.waiting_room * 2 if c.waiting_room else 16
            grown = <Waiting*>malloc(room * sizeof(Waiting))
            if grown == NULL:
                raise MemoryError()
            for k in range(c.waiting_count):
                grown[k] = c.waiting[(c.waiting_first + k) % c.waiting_room]
            free(c.waiting)
            c.waiting = grown
            c.waiting_room = room
            c.waiting_first = 0
        head.references += 1
        k = (c.waiting_first + c.waiting_count) % c.waiting_room
        c.waiting[k].head = head
        c.waiting[k].instruction = instruction
        c.waiting_count += 1
        c.waiting_bytes += head.length + head.body_length
        self.touch(c)
        if self.count_waiting(c) > self.slow_messages or (
                self.bytes_waiting(c) > self.slow_bytes and self.count_waiting(c) > 1):
            self.too_slow(c)
        return 0

    cdef uint64_t count_waiting(self, Connection* c) noexcept:
        return c.waiting_count + (c.out.mark_count if c.out != NULL else 0)

    cdef uint64_t bytes_waiting(self, Connection* c) noexcept:
        return (c.waiting_bytes - c.emitted + c.more_end - c.more_start
                + (c.out.end - c.out.start if c.out != NULL else 0))

    cdef int too_slow(self, Connection* c) except -1:
        """It does not read: cut it off, with the reason if that can still be sent."""
        if c.hurt or c.eof and c.deaf:
            return 0
        self.n_slow += 1
        self.cut(c, "slow-client", error_frame("slow-client", "", 0, 0), False)
        return 0

    cdef int put_plain(self, Connection* c, char* data, uint32_t length, bint ordered, bint last) except -1:
        """Frames without accounting. Out of order means: in front of what waits for credit, never inside a frame."""
        cdef OutBuffer* o
        cdef Head* head
        if c.hurt or c.linger or c.state >= CLOSING:
            return 0
        if c.more_left == 0 and (c.waiting_count == 0 or not ordered and self.out_of_credit(c)) and self.fits(c, length):
            o = c.out
            memcpy(o.data + o.end, data, length)
            o.end += length
            c.queued += length
            self.touch(c)
            return 0
        if c.hurt:
            return 0
        head = self.keep(data, length, 0, NULL, True, last)
        self.queue(c, head, NO_INSTRUCTION)
        self.release(head)
        return 0

    cdef bint out_of_credit(self, Connection* c) noexcept:
        """Is credit what the first waiting delivery waits for?"""
        return (c.waiting_count and not c.emitting and not self.has_credit(c)
                and not c.waiting[c.waiting_first].head.plain)

    cdef inline bint has_credit(self, Connection* c) noexcept:
        return c.unlimited or c.credit > 0 or c.overdraft

    cdef int pong(self, Connection* c, uint64_t correlation) except -1:
        cdef char frame[32]
        memset(frame, 0, 32)
        (<uint32_t*>frame)[0] = 32
        frame[4] = K_PONG
        (<uint64_t*>(frame + 16))[0] = correlation
        return self.put_plain(c, frame, 32, False, False)

    cdef int ping(self, Connection* c) except -1:
        cdef char frame[32]
        memset(frame, 0, 32)
        (<uint32_t*>frame)[0] = 32
        frame[4] = K_PING
        return self.put_plain(c, frame, 32, False, False)

    cdef int emit(self, Connection* c) except -1:
        """Move what waits into the output buffer, piece by piece if it is large, as far as credit and room go."""
        cdef Waiting* w
        cdef Head* h
        cdef OutBuffer* o = self.out_of(c)
        cdef uint32_t room, n, into
        cdef bint pieces
        cdef char* at
        while c.waiting_count or c.more_end > c.more_start:
            if c.more_left or not c.emitting and c.more_end > c.more_start and (c.more_first or c.waiting_count == 0):
                if not self.emit_more(c, o):
                    return 0
                continue
            w = &c.waiting[c.waiting_first]
            h = w.head
            pieces = h.body_length > PIECE and not h.plain
            if o.start == o.end:
                o.start = o.end = 0
            elif o.start > OUT_BYTES // 2:
                memmove(o.data, o.data + o.start, o.end - o.start)
                o.end -= o.start
                o.start = 0
            if not c.emitting:
                if not h.plain and not self.has_credit(c):
                    if c.more_end > c.more_start:
                        c.more_first = 1
                        continue
                    break
                if o.end + h.length + 8 > OUT_BYTES or o.mark_count == MARKS:
                    break
                at = o.data + o.end
                memcpy(at, h.data, h.length)
                n = h.length
                if not h.plain:
                    c.credit -= 1
                    if pieces:
                        (<uint32_t*>at)[0] = h.length + 8 + PIECE
                        (<uint8_t*>at)[5] |= F_FRAGMENTED
                        (<uint64_t*>(at + h.length))[0] = h.body_length
                        n += 8
                    else:
                        (<uint32_t*>at)[0] = h.length + h.body_length
                o.end += n
                c.queued += n
                c.emitting = 1
                c.emitted = 0
            while c.emitted < h.body_length:
                room = OUT_BYTES - o.end
                if room < 64:
                    break
                into = c.emitted % PIECE
                if pieces and into == 0 and c.emitted:
                    at = o.data + o.end
                    memset(at, 0, 32)
                    n = h.body_length - c.emitted
                    (<uint32_t*>at)[0] = 32 + (n if n < PIECE else PIECE)
                    at[4] = K_FRAGMENT
                    o.end += 32
                    c.queued += 32
                    room -= 32
                n = h.body_length - c.emitted
                if pieces and n > PIECE - into:
                    n = PIECE - into
                if n > room:
                    n = room
                memcpy(o.data + o.end, h.body + c.emitted, n)
                o.end += n
                c.queued += n
                c.emitted += n
            if c.emitted < h.body_length:
                break
            if not h.plain:
                self.mark(c, w.instruction, h.length + h.body_length)
            c.emitting = 0
            c.emitted = 0
            c.more_first = 1
            c.waiting_bytes -= h.length + h.body_length
            c.waiting_first = (c.waiting_first + 1) % c.waiting_room
            c.waiting_count -= 1
            self.release(h)
        if c.waiting_count == 0:
            free(c.waiting)
            c.waiting = NULL
            c.waiting_room = c.waiting_first = 0
        return 0

    cdef bint emit_more(self, Connection* c, OutBuffer* o) noexcept:
        """Go on with one frame of the message manager; False: the output is full."""
        cdef uint32_t n
        if o.start == o.end:
            o.start = o.end = 0
        elif o.start > OUT_BYTES // 2:
            memmove(o.data, o.data + o.start, o.end - o.start)
            o.end -= o.start
            o.start = 0
        if c.more_left == 0:
            c.more_left = u32(c.more + c.more_start)
        n = OUT_BYTES - o.end
        if n < 64:
            return False
        if n > c.more_left:
            n = c.more_left
        memcpy(o.data + o.end, c.more + c.more_start, n)
        o.end += n
        c.queued += n
        c.more_start += n
        c.more_left -= n
        if c.more_left == 0:
            c.more_first = 0                   # transient deliveries take turns with these
        if c.more_start == c.more_end:
            self.drop_more(c)
        return c.more_left == 0

    cdef int flush_all(self) except -1:
        """One send for everything gathered, for each connection that has something."""
        cdef uint32_t i = 0
        cdef Connection* c
        while i < self.dirty_count:
            c = &self.connections[self.dirty[i]]
            i += 1
            c.dirty = 0
            if c.fd >= 0:
                self.flush(c, True)
        self.dirty_count = 0
        return 0

    cdef int flush(self, Connection* c, bint settle) except -1:
        """Send. With `settle` the connection may end here, if its end was waiting for this."""
        cdef OutBuffer* o
        cdef ssize_t n
        cdef int sends = 0
        if c.tls:
            return self.flush_tls(c, settle)
        while not c.hurt and not c.write_blocked:
            if c.more_end - c.more_start >= STRAIGHT_BYTES and self.is_clear(c):
                if sends == SENDS:
                    c.write_blocked = 1        # the others first; epoll brings us back
                    break
                sends += 1
                self.flush_more(c)
                continue
            if (c.waiting_count or c.more_end) and (c.out == NULL or c.out.end - c.out.start < OUT_BYTES // 2):
                self.emit(c)
            o = c.out
            if o == NULL or o.start == o.end:
                break
            if sends == SENDS:
                c.write_blocked = 1            # the others first; epoll brings us back
                break
            n = send(c.fd, o.data + o.start, o.end - o.start, MSG_DONTWAIT | MSG_NOSIGNAL)
            sends += 1
            if n < 0:
                if errno == EAGAIN:
                    c.write_blocked = 1
                elif errno != EINTR:
                    self.broken(c)
                continue
            self.accepted(c, <uint32_t>n)
            if o.start < o.end:
                c.write_blocked = 1
        if c.full:
            self.relieve(c)
        return self.settle(c) if settle else 0

    cdef int flush_tls(self, Connection* c, bint settle) except -1:
        cdef list state = self.filters[c.index]
        cdef OutBuffer* o
        cdef ssize_t n
        cdef int sends = 0
        cdef bytes pending
        while not c.hurt and not c.write_blocked:
            pending = state[1]
            if state[2] == len(pending):
                if c.waiting_count or c.more_end:
                    self.emit(c)
                o = c.out
                if o == NULL or o.start == o.end:
                    break
                try:
                    pending = state[0].send(o.data[o.start:o.end])
                except Exception:
                    self.broken(c)
                    break
                state[1] = pending
                state[2] = 0
                state[3] = o.end - o.start
                if not pending:
                    break                      # the handshake is not over
            if sends == SENDS:
                c.write_blocked = 1
                break
            n = send(c.fd, PyBytes_AS_STRING(pending) + <int>state[2], len(pending) - <int>state[2],
                     MSG_DONTWAIT | MSG_NOSIGNAL)
            sends += 1
            if n < 0:
                if errno == EAGAIN:
                    c.write_blocked = 1
                elif errno != EINTR:
                    self.broken(c)
                continue
            state[2] += n
            if state[2] == len(pending):
                self.accepted(c, <uint32_t>state[3])
                state[1] = b""
                state[2] = state[3] = 0
            else:
                c.write_blocked = 1
        if c.full:
            self.relieve(c)
        return self.settle(c) if settle else 0

    cdef void accepted(self, Connection* c, uint32_t n) noexcept:
        """So many bytes were handed to the connection: the deliveries that end in them are done."""
        cdef OutBuffer* o = c.out
        cdef Mark* m
        c.sent_ms = self.now
        if o == NULL or n == 0:
            return
        o.start += n
        c.sent += n
        self.n_bytes_out += n
        while o.mark_count:
            m = &o.marks[o.mark_first]
            if m.end > c.sent:
                break
            o.mark_first = (o.mark_first + 1) % MARKS
            o.mark_count -= 1
            self.share_done(m.instruction)
        if o.start == o.end:
            o.start = o.end = 0

    cdef int settle(self, Connection* c) except -1:
        """After sending: give the buffer back, and go on with an end that waited for the last byte."""
        cdef bint pending = c.tls and len((<list>self.filters[c.index])[1]) > 0
        if c.out != NULL and c.out.start == c.out.end and c.out.mark_count == 0:
            self.free_out(c)
        if c.hurt and c.state == CLOSING:
            self.close_now(c)
            return 0
        if c.out == NULL and c.waiting_count == 0 and c.more_end == 0 and not pending:
            if c.detaching and c.state < CLOSING:
                c.eof = 1
                c.deaf = 1
                c.linger = 1
                self.enlist(c)
            elif c.state == CLOSING:
                self.wait_for_end(c)
                return 0
        self.poll(c)
        return 0

    cdef void wait_for_end(self, Connection* c) noexcept:
        """All is sent. Closing now, with input unread, could destroy it on its way: let the client close first."""
        shutdown(c.fd, SHUT_WR)
        c.state = LINGER
        c.masked = 0
        c.write_blocked = 0
        c.since_ms = self.now
        self.poll(c)

    # -- the end of a connection -------------------------------------------------------------------------------

    cdef int cut(self, Connection* c, str reason, bytes frames, bint deaf) except -1:
        """End it from our side. What waits unsent is given up; `frames` are the last word if there is room for it."""
        cdef OutBuffer* o
        if c.state >= CLOSING or c.linger and c.eof:
            return 0
        self.note(c, reason)
        self.drop_waiting(c)
        if frames and not c.hurt:
            o = self.out_of(c)
            if not c.emitting and o.end + <uint32_t>len(frames) <= OUT_BYTES:
                memcpy(o.data + o.end, PyBytes_AS_STRING(frames), len(frames))
                o.end += <uint32_t>len(frames)
                c.queued += <uint64_t>len(frames)
            self.touch(c)
        c.linger = 1
        c.eof = 1
        c.since_ms = self.now
        if deaf:
            c.deaf = 1
        c.masked = 0
        self.poll(c)
        self.enlist(c)
        return 0

    cdef void note(self, Connection* c, str reason) except *:
        """Why it ends, for the log."""
        self.reasons.setdefault(c.index, reason)

    cdef void broken(self, Connection* c) except *:
        """Writing is no longer possible."""
        if c.hurt:
            return
        c.hurt = 1
        c.write_blocked = 0
        c.linger = 0
        if c.state >= CLOSING:
            self.touch(c)
            return
        if not c.eof:
            # There may be input that came before the break: read on for a moment, its end is near.
            c.masked = 0
            c.since_ms = self.now
        self.drop_waiting(c)
        self.drop_output(c)
        if c.eof:
            self.enlist(c)
        self.poll(c)

    cdef void drop_waiting(self, Connection* c) except *:
        """Deliveries not begun: requests among them are reported, all are counted as finished."""
        cdef Waiting* w
        cdef uint32_t kept = c.more_left > 0
        self.drop_more(c)
        while c.waiting_count:
            w = &c.waiting[c.waiting_first]
            if not w.head.plain:
                c.lost += 1
                if not c.emitting:
                    self.undelivered(w.head.data, w.head.length, c.index, c.uid)
                else:
                    self.n_lost += 1
                self.share_done(w.instruction)
            self.release(w.head)
            kept = kept or c.emitting
            c.emitting = 0
            c.emitted = 0
            c.waiting_first = (c.waiting_first + 1) % c.waiting_room
            c.waiting_count -= 1
        c.emitting = kept                      # nothing may be put behind half a frame
        free(c.waiting)
        c.waiting = NULL
        c.waiting_room = c.waiting_first = 0
        c.waiting_bytes = 0

    cdef void drop_output(self, Connection* c) except *:
        """Deliveries in the buffer that were not accepted to the last byte."""
        cdef OutBuffer* o = c.out
        cdef Mark* m
        cdef uint64_t begin, offset, untouched
        if o == NULL:
            return
        untouched = c.sent
        if c.tls and c.index in self.filters:
            untouched += <uint64_t>(<list>self.filters[c.index])[3]
        while o.mark_count:
            m = &o.marks[o.mark_first]
            begin = m.end - m.size
            c.lost += 1
            if begin >= untouched and m.size <= o.end - o.start:
                offset = o.start + (begin - c.sent)
                self.undelivered(o.data + offset, self.head_at(o.data + offset), c.index, c.uid)
            else:
                self.n_lost += 1
            o.mark_first = (o.mark_first + 1) % MARKS
            o.mark_count -= 1
            self.share_done(m.instruction)
        c.queued = c.sent
        self.free_out(c)

    cdef inline uint32_t head_at(self, char* f) noexcept:
        return 32 + u16(f + 6) + u32(f + 8)

    cdef int depart(self, Connection* c) except -1:
        """All it sent was taken: tell the router, let go of everything it held, close."""
        if c.state >= CLOSING:
            return 0
        if c.state == LIVE:
            self.n_live -= 1
        if c.handle == LARGE:
            self.drop_large(c)
        if c.handle:
            self.own.abandon_c(c.handle)
            c.handle = 0
            c.body = NULL
            free(c.head)
            c.head = NULL
            c.frame_left = 0
        if self.starving == <int64_t>c.index:
            self.starving = -1
        self.drop_input(c)
        self.drop_waiting(c)
        if not c.linger or c.hurt:
            self.drop_output(c)
        self.say_gone(c)
        if c.attached:
            self.push_uncounted(UP_GONE, c.uid, c.index, b"")
        if c.linger and not c.hurt:
            c.state = CLOSING
            c.since_ms = self.now
            self.touch(c)
        else:
            self.close_now(c)
        return 0

    cdef void close_now(self, Connection* c) except *:
        """The descriptor goes, the index may be used again."""
        if c.fd < 0:
            return
        self.drop_waiting(c)
        self.drop_output(c)
        self.drop_input(c)
        if c.polled:
            epoll_ctl(self.epoll, EPOLL_CTL_DEL, c.fd, NULL)
            c.polled = 0
        c_close(c.fd)
        c.fd = -1
        c.state = EMPTY
        self.n_connections -= 1
        self.filters.pop(c.index, None)
        if c.lost:
            self.events.append((c.index, "lost", b"%d" % c.lost))
        reason = self.reasons.pop(c.index, "closed" if c.deaf else "connection-lost")
        self.events.append((c.index, "closed", (<str>reason).encode()))

    cdef int sweep(self) except -1:
        """Timers, about once a second: prefaces, handshakes, silence, ends that take too long."""
        cdef uint32_t i
        cdef Connection* c
        cdef int64_t silence
        while self.highest and self.connections[self.highest - 1].fd < 0:
            self.highest -= 1
        for i in range(self.highest):
            c = &self.connections[i]
            if c.fd < 0:
                continue
            if c.state == LIVE:
                if c.detaching:
                    if self.now - c.since_ms >= self.handshake_ms:
                        self.cut(c, "closed", b"", True)
                    continue
                if c.eof:
                    if c.linger and self.now - c.since_ms >= LINGER_MS:
                        self.broken(c)         # its last words were not read, and its last messages still wait
                    continue
                if c.hurt:
                    if self.now - c.since_ms >= LINGER_MS:
                        self.finished(c)
                    continue
                if c.masked or c.place == ON_BLOCKED:
                    # We do not read it, so its silence is ours; but it should hear that we are there.
                    c.heard_ms = self.now
                    if self.out_of_credit(c):
                        # Its CREDIT may lie behind the message we cannot take, perhaps because the arena is full of
                        # what waits for this very client.
                        c.overdraft = 1
                        self.touch(c)
                    if self.now - c.sent_ms >= c.keep_alive_ms // 2:
                        self.ping(c)
                    continue
                silence = self.now - c.heard_ms
                if silence >= 2 * c.keep_alive_ms and c.pinged:  # nobody is cut off without having been asked
                    self.cut(c, "keep-alive-timeout", error_frame("keep-alive-timeout", "", 0, 0), False)
                elif silence >= c.keep_alive_ms and not c.pinged:
                    c.pinged = 1
                    self.ping(c)
            elif c.state == PREFACE or c.state == SECURING:
                if self.now - c.since_ms >= self.preface_ms:
                    self.cut(c, "handshake-timeout", b"", True)
            elif c.state == CONFIRMED:
                if self.now - c.since_ms >= self.handshake_ms:
                    self.cut(c, "handshake-timeout", error_frame("handshake-timeout", "", 0, 0), True)
            elif c.state == CLOSING or c.state == LINGER:
                if self.now - c.since_ms >= LINGER_MS:
                    self.close_now(c)
        return 0
