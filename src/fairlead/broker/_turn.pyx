# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The router's turn in compiled code: broadcasts, requests and responses without a Python call; the rest is decided in Python.

Twin of `turn.py` and `parties.py`. The short cuts below are the cases of `decisions.py` that carry the load; whatever
is not plainly one of them goes the long way through `Decisions`, so there is one place where the rules are told.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy
from fairlead.store._store cimport COUNTED, ENTRY, ROUND, Consumer, Producer

from fairlead.broker import records

cdef extern from "unistd.h" nogil:
    long write(int, const void*, size_t)
    long read(int, void*, size_t)

cdef extern from "sys/epoll.h" nogil:
    ctypedef union epoll_data_t:
        int fd
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_wait(int, epoll_event*, int, int)

cdef extern from "time.h" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int, timespec*)
    enum:
        CLOCK_MONOTONIC

cdef enum:
    MANAGERS_MAX = 30
    HEAD = 32
    UP_CONTENT = 48
    DOWN_RECIPIENTS = 40
    UP_MESSAGE = 1
    UP_CONTROL = 2
    UP_ATTACH = 3
    UP_RESPONSE = 4
    UP_GONE = 5
    UP_ROUND = 6
    UP_UNDELIVERED = 7
    DOWN_DELIVER = 1
    DOWN_DELETE = 2
    KIND_PUBLISH = 0x20
    KIND_REQUEST = 0x21
    KIND_RESPONSE = 0x22
    FLAG_LAST = 0x01
    FLAG_NAMED = 0x04
    FLAG_IDENTITY = 0x10
    RECORD_ASK = 8
    RECORD_ANSWERED = 9
    COMMITS = 128
    COMMIT_STRIDE = 1024
    AREAS = 4096

cdef enum:                       # places in the row of counters, see runtime/counters.py
    C_ENTRIES = 0
    C_MESSAGES = 1
    C_DELIVERIES = 2
    C_DELETES = 3
    C_COMMITS = 4
    C_REQUESTS_OPEN = 6
    C_REFUSED = 8
    C_LOOP_PROGRESS = 13
    C_LAST_TURN_NS = 14

cdef enum Outcome:
    DONE = 0
    BLOCKED = 1
    LONG_WAY = 2

cdef uint64_t RID_BASE = <uint64_t>1 << 63
LOG_SPARE_BYTES = 1 << 18
cdef uint64_t LOG_SPARE = LOG_SPARE_BYTES


cdef inline uint64_t clock_ns() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <uint64_t>t.tv_sec * 1000000000 + t.tv_nsec


cdef class Attachment:
    """A live (or opening) client of the server, wherever its connection is at the moment."""

    cdef public uint64_t uid, conn, recipient, resuming, chosen
    cdef public int manager
    cdef public uint32_t index
    cdef public long outstanding
    cdef public bint live
    cdef public str peer, type, instance, org, user, who, tenant
    cdef public bytes from_pair, prefix
    cdef public dict asked, serving, subscriptions, registrations, may_publish

    def __init__(self, uint64_t uid, uint64_t conn, int manager, uint32_t index, str peer):
        self.uid = uid
        self.peer = peer
        self.type = self.instance = self.org = self.user = self.who = self.tenant = ""
        self.from_pair = self.prefix = b""
        self.asked = {}
        self.serving = {}
        self.subscriptions = {}
        self.registrations = {}
        self.may_publish = None
        self.connect(conn, manager, index)

    def connect(self, uint64_t conn, int manager, uint32_t index):
        self.conn = conn
        self.manager = manager
        self.index = index
        self.recipient = (<uint64_t>index << 32) | (conn & 0xFFFFFFFF)


cdef class Ask:
    """A request, conversation or fan-out request that is not over."""

    cdef public uint64_t rid, requester, correlation
    cdef public int kind
    cdef public dict awaiting

    def __init__(self, uint64_t rid, uint64_t requester, uint64_t correlation, int kind):
        self.rid = rid
        self.requester = requester
        self.correlation = correlation
        self.kind = kind
        self.awaiting = {}


cdef class Route:
    """Where a topic's broadcasts go: recipients by manager, ready to be written."""

    cdef public list targets
    cdef public object no_local, error
    cdef public bint is_own
    cdef public uint16_t strip
    cdef Attachment allowed_to      # who was found to have the right last: most topics have one sender
    cdef bint simple
    cdef int count
    cdef int managers[MANAGERS_MAX]
    cdef char* packed[MANAGERS_MAX]
    cdef uint64_t sizes[MANAGERS_MAX]

    def __init__(self, list targets, no_local, error=None, bint is_own=False, uint16_t strip=0):
        cdef int i
        self.targets = targets
        self.no_local = no_local
        self.error = error
        self.is_own = is_own
        self.strip = strip
        self.simple = not no_local and error is None and not is_own
        self.count = len(targets)
        for i in range(self.count):
            self.managers[i] = targets[i][0]
            self.packed[i] = PyBytes_AS_STRING(targets[i][1])
            self.sizes[i] = PyBytes_GET_SIZE(targets[i][1])


cdef class Turn:
    """The hot loop over all rings, and the only writer of the routing segment."""

    cdef list ups, downs
    cdef int managers
    cdef Py_buffer view
    cdef char* segment
    cdef uint64_t area_bytes
    cdef object decisions, routing, rule
    cdef dict by_conn, by_uid, groups, asks, routes
    cdef bint by_outstanding, round_complete
    cdef uint64_t simple_messages, resume_below
    cdef int wake_fds[MANAGERS_MAX]
    cdef int at
    cdef uint64_t blocked
    cdef bint changed
    cdef uint64_t next_request
    cdef Attachment last_source
    cdef Route last_route
    cdef bytes last_topic
    cdef Py_buffer counters_view
    cdef uint64_t* counters
    cdef public uint64_t sequence, flips, log_end, log_limit
    cdef uint64_t messages, deliveries, deletes, refused, entries

    def __cinit__(self, list ups, list downs, segment, decisions, list wake_fds, rule, counters):
        cdef int i
        PyObject_GetBuffer(segment, &self.view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        self.segment = <char*>self.view.buf
        self.area_bytes = (<uint64_t*>(self.segment + 64))[0]
        self.ups = ups
        self.downs = downs
        self.managers = len(ups)
        for i in range(self.managers):
            self.wake_fds[i] = wake_fds[i]
        self.decisions = decisions
        self.routing = decisions.routing
        self.by_conn = self.routing.by_conn
        self.by_uid = self.routing.by_uid
        self.groups = self.routing.groups
        self.asks = self.routing.asks
        self.routes = self.routing.routes
        self.by_outstanding = decisions.terms.by_outstanding
        self.rule = rule
        self.round_complete = rule.round_complete
        self.simple_messages = rule.simple_messages
        self.resume_below = rule.resume_below
        PyObject_GetBuffer(counters, &self.counters_view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        self.counters = <uint64_t*>self.counters_view.buf
        self.entries, self.messages = self.counters[C_ENTRIES], self.counters[C_MESSAGES]
        self.deliveries, self.deletes = self.counters[C_DELIVERIES], self.counters[C_DELETES]
        self.refused = self.counters[C_REFUSED]

    def __dealloc__(self):
        PyBuffer_Release(&self.view)
        PyBuffer_Release(&self.counters_view)

    # -- beginning and end

    def start(self, found):
        """Take up the rings where the newest commit left them; everything beyond never happened."""
        cdef int i
        if found is not None:
            self.sequence, self.flips, self.log_end = found.sequence, found.flips, found.log_end
            self.routing.next_request = max(self.routing.next_request, found.next_request)
            for i in range(self.managers):
                positions = found.managers[i]
                self.ups[i].rollback(positions.up_head, positions.up_popped)
                self.downs[i].rollback(positions.down_tail, positions.down_counted)
                self.wake(i)
        self.next_request = self.routing.next_request
        self.commit()

    def commit(self):
        """Write the record that makes this turn true, then let the others see it."""
        self.write_record()
        self.publish()

    def write_record(self):
        self.sequence += 1
        cdef uint64_t* record = <uint64_t*>(self.segment + COMMITS + (self.sequence & 1) * COMMIT_STRIDE)
        cdef uint64_t total = <uint64_t>0xCBF29CE484222325
        cdef int i, words = 4 + 4 * self.managers
        if self.routing.next_request > self.next_request:
            self.next_request = self.routing.next_request
        record[0] = self.sequence
        record[1] = self.flips & 0xFFFFFFFF | (<uint64_t>self.managers << 32)
        record[2] = self.log_end
        record[3] = self.next_request
        for i in range(self.managers):
            record[4 + 4 * i] = (<Consumer>self.ups[i]).cursor
            record[5 + 4 * i] = (<Consumer>self.ups[i]).counted
            record[6 + 4 * i] = (<Producer>self.downs[i]).tail
            record[7 + 4 * i] = (<Producer>self.downs[i]).counted
        for i in range(words):
            total = (total ^ record[i]) * <uint64_t>0x100000001B3
        record[words] = total

    def publish(self):
        cdef int i
        cdef bint sleeps, wants
        for i in range(self.managers):
            sleeps = (<Producer>self.downs[i]).publish_c()
            wants = (<Consumer>self.ups[i]).publish_c(self.resume_below)
            if sleeps or wants:
                self.wake(i)
        self.changed = False

    cdef void wake(self, int manager) noexcept nogil:
        cdef uint64_t one = 1
        write(self.wake_fds[manager], &one, 8)

    # -- the log

    def area(self):
        """The log area in use."""
        return memoryview(self.view.obj).cast("B")[
            AREAS + (self.flips & 1) * self.area_bytes : AREAS + (self.flips & 1) * self.area_bytes + self.area_bytes
        ]

    cdef inline char* log_at(self) noexcept nogil:
        return self.segment + AREAS + (self.flips & 1) * self.area_bytes + self.log_end

    def log_room(self):
        return self.log_limit - self.log_end

    def append(self, int kind, bytes payload):
        cdef bytes record = records.encode(kind, payload)
        memcpy(self.log_at(), PyBytes_AS_STRING(record), PyBytes_GET_SIZE(record))
        self.log_end += PyBytes_GET_SIZE(record)

    cdef inline void append_words(self, int kind, uint64_t* words, int count) noexcept nogil:
        cdef char* at = self.log_at()
        (<uint32_t*>at)[0] = 8 + 8 * count
        (<uint32_t*>at)[1] = kind
        memcpy(at + 8, words, 8 * count)
        self.log_end += 8 + 8 * count

    def flip(self, uint64_t limit):
        """Write the whole state to the other area, which has `limit` bytes of memory, and go on there."""
        self.routing.next_request = max(self.routing.next_request, self.next_request)
        cdef bytes state = b"".join([records.encode(kind, payload) for kind, payload in self.routing.dump()])
        self.flips += 1
        self.log_limit = limit
        self.log_end = 0
        memcpy(self.log_at(), PyBytes_AS_STRING(state), PyBytes_GET_SIZE(state))
        self.log_end = PyBytes_GET_SIZE(state)
        self.commit()

    # -- a turn

    def serve(
        self, int epoll_fd, int wake_fd, uint64_t budget, uint64_t until_ns, int tick_ms, uint64_t log_end_max,
        uint64_t log_room_min,
    ):
        """Turns, and sleep between them, until `until_ns`, a full log, or something else than a wake-up.

        The answer: 1 when nobody woke us for `tick_ms` (`awake` is the caller's then), else 0.
        """
        cdef epoll_event events[8]
        cdef int count, i
        cdef uint64_t done, now_ns, scrap
        while True:
            now_ns = clock_ns()
            done = self.run_c(budget, now_ns)
            self.count(now_ns)
            if now_ns >= until_ns:
                return 0
            if done:
                if self.log_end > log_end_max or self.log_limit - self.log_end < log_room_min:
                    return 0
                continue
            if self.sleep():
                with nogil:
                    count = epoll_wait(epoll_fd, events, 8, tick_ms)
            else:
                count = -1
            if count == 0:
                return 1         # still asleep for the managers: what is found now, nobody woke us for
            self.awake()
            for i in range(count):
                if events[i].data.fd == wake_fd:
                    read(wake_fd, &scrap, 8)
                else:
                    return 0

    cdef void count(self, uint64_t now_ns) noexcept:
        cdef uint64_t* words = self.counters
        words[C_ENTRIES], words[C_MESSAGES] = self.entries, self.messages
        words[C_DELIVERIES], words[C_DELETES] = self.deliveries, self.deletes
        words[C_REFUSED], words[C_COMMITS] = self.refused, self.sequence
        words[C_REQUESTS_OPEN] = len(self.asks)
        words[C_LOOP_PROGRESS] += 1
        words[C_LAST_TURN_NS] = now_ns

    def run(self, uint64_t budget, uint64_t now_ns):
        """Deal with up to `budget` entries and commit. Returns how many; 0: nothing can be done now."""
        return self.run_c(budget, now_ns)

    cdef uint64_t run_c(self, uint64_t budget, uint64_t now_ns) except? 0xFFFFFFFF:
        cdef uint64_t done = 0, visited
        cdef int idle = 0, manager
        cdef bint finished
        self.blocked = 0
        while done < budget and idle < self.managers:
            finished = False
            manager = self.at
            visited = self.visit(manager, budget - done, now_ns, &finished)
            done += visited
            idle = 0 if visited else idle + 1
            if finished:
                self.at = (self.at + 1) % self.managers
            if self.log_limit - self.log_end < LOG_SPARE:
                break
            if visited and (<Consumer>self.ups[manager]).owes_c(self.resume_below):
                break            # that manager waits for room: let it fill up while the others are visited, not after
        if self.changed or done:
            self.commit()
        self.entries += done
        return done

    cdef uint64_t visit(self, int manager, uint64_t budget, uint64_t now_ns, bint* finished) except? 0xFFFFFFFF:
        """Read one manager's ring to its round-complete mark."""
        cdef Consumer up = <Consumer>self.ups[manager]
        cdef uint64_t done = 0
        cdef char* entry
        cdef uint8_t kind, flags
        cdef int outcome
        while done < budget and self.log_limit - self.log_end >= LOG_SPARE:
            entry = up.next_c()
            if entry == NULL:
                finished[0] = True
                return done
            kind, flags = (<uint8_t*>entry)[4], (<uint8_t*>entry)[5]
            if kind == UP_MESSAGE:
                outcome = self.message(manager, entry)
            elif kind == UP_ROUND:
                outcome = DONE
            else:
                outcome = LONG_WAY
            if outcome == LONG_WAY:
                outcome = self.long_way(manager, entry, now_ns)
                if outcome == LONG_WAY:      # the entry stays: more is to be done for it
                    finished[0] = True
                    return done + 1
            if outcome == BLOCKED:
                self.blocked |= <uint64_t>1 << manager
                finished[0] = True
                return done
            up.advance_c(entry)
            done += 1
            if self.round_complete:
                if flags & ROUND or kind == UP_ROUND:
                    finished[0] = True
                    return done
            elif done >= self.simple_messages:
                finished[0] = True
                return done
        return done

    cdef int message(self, int manager, char* entry) except -1:
        cdef char* head = entry + UP_CONTENT
        cdef uint64_t uid = (<uint64_t*>(entry + 16))[0]
        cdef uint8_t kind = (<uint8_t*>head)[4]
        cdef Attachment source = self.last_source
        cdef PyObject* found
        if kind > KIND_RESPONSE:
            return LONG_WAY
        if source is None or source.conn != uid:
            found = PyDict_GetItem(self.by_conn, uid)
            if found == NULL:
                return LONG_WAY
            source = self.last_source = <Attachment>found
        if not source.live:
            return LONG_WAY
        if kind == KIND_PUBLISH:
            return self.broadcast(manager, entry, head, source)
        if kind == KIND_REQUEST:
            return self.request(manager, entry, head, source)
        return self.response(manager, entry, head, source)

    cdef int broadcast(self, int manager, char* entry, char* head, Attachment source) except -1:
        cdef uint16_t topic_length = (<uint16_t*>(head + 6))[0]
        cdef char* topic = head + HEAD
        cdef Route route
        cdef PyObject* found
        cdef int i
        cdef uint64_t handle = (<uint64_t*>(entry + 24))[0]
        cdef uint32_t content = (<uint32_t*>(entry + 40))[0]
        cdef uint64_t size
        cdef Py_ssize_t before = PyBytes_GET_SIZE(source.prefix)
        cdef uint16_t strip = 0
        if (self.last_topic is not None and PyBytes_GET_SIZE(self.last_topic) == before + topic_length
                and memcmp(PyBytes_AS_STRING(self.last_topic) + before, topic, topic_length) == 0
                and (before == 0
                     or memcmp(PyBytes_AS_STRING(self.last_topic), PyBytes_AS_STRING(source.prefix), before) == 0)):
            route = self.last_route
        else:
            if before == 0:
                self.last_topic = PyBytes_FromStringAndSize(topic, topic_length)
            elif memchr(topic, 0x1F, topic_length) != NULL:
                return LONG_WAY  # each of several topics needs its prefix
            else:
                self.last_topic = self.named(source, topic, topic_length)
            found = PyDict_GetItem(self.routes, self.last_topic)
            if found == NULL:
                route = self.routing.resolve(self.last_topic)
            else:
                route = <Route>found
            self.last_route = route
        if not route.simple:
            return LONG_WAY
        if source.may_publish is not None and route.allowed_to is not source:
            found = PyDict_GetItem(source.may_publish, self.last_topic)
            if found == NULL or <object>found is not True:
                return LONG_WAY
            route.allowed_to = source
        if route.strip and before == 0:
            if source.uid != 0:
                return LONG_WAY  # nobody outside the tenant; the message manager alone names its topics in full
            strip = route.strip
        self.messages += 1
        if route.count == 0:
            return self.write_delete(manager, handle)
        size = DOWN_RECIPIENTS + content + PyBytes_GET_SIZE(source.from_pair)
        for i in range(route.count):
            if not self.fits(route.managers[i], size + route.sizes[i]):
                self.messages -= 1
                return BLOCKED
        for i in range(route.count):
            self.write_delivery(
                route.managers[i], entry, handle, i, route.count if i == route.count - 1 else 0,
                route.packed[i], route.sizes[i], 0, source, strip,
            )
        return DONE

    cdef bytes named(self, Attachment source, char* topic, uint16_t topic_length):
        """A topic of a tenant's client as the server keeps it."""
        cdef Py_ssize_t before = PyBytes_GET_SIZE(source.prefix)
        cdef bytes name = PyBytes_FromStringAndSize(NULL, before + topic_length)
        memcpy(PyBytes_AS_STRING(name), PyBytes_AS_STRING(source.prefix), before)
        memcpy(PyBytes_AS_STRING(name) + before, topic, topic_length)
        return name

    cdef int request(self, int manager, char* entry, char* head, Attachment source) except -1:
        cdef uint16_t topic_length = (<uint16_t*>(head + 6))[0]
        cdef uint64_t correlation = (<uint64_t*>(head + 16))[0]
        cdef uint64_t words[5]
        cdef uint64_t rid
        cdef PyObject* found
        cdef Attachment receiver, candidate
        cdef Ask ask
        cdef bytes topic
        if (<uint64_t*>(head + 24))[0] or (<uint8_t*>head)[5] & FLAG_NAMED or correlation >= RID_BASE:
            return LONG_WAY
        if len(source.asked) >= 4096 or correlation in source.asked:
            return LONG_WAY
        topic = self.named(source, head + HEAD, topic_length)
        if source.may_publish is not None:
            found = PyDict_GetItem(source.may_publish, topic)
            if found == NULL or <object>found is not True:
                return LONG_WAY
        elif topic_length and head[HEAD] == 0x5F:
            return LONG_WAY  # one of the server's own names: rules are asked, whoever sends
        found = PyDict_GetItem(self.groups, topic)
        if found == NULL:
            return LONG_WAY
        receiver = None
        for candidate in (<dict>(<object>found).members).values():
            if receiver is None or (
                candidate.chosen < receiver.chosen
                if not self.by_outstanding or candidate.outstanding == receiver.outstanding
                else candidate.outstanding < receiver.outstanding
            ):
                receiver = candidate
        if receiver is None or not receiver.live:
            return LONG_WAY
        if not self.fits(receiver.manager, DOWN_RECIPIENTS + 8 + (<uint32_t*>(entry + 40))[0] + len(source.from_pair)):
            return BLOCKED
        self.messages += 1
        if self.routing.next_request > self.next_request:
            self.next_request = self.routing.next_request
        rid = RID_BASE | self.next_request
        self.next_request += 1
        self.routing.next_request = self.next_request
        ask = Ask(rid, source.uid, correlation, KIND_REQUEST)
        ask.awaiting[receiver.uid] = None
        self.asks[rid] = ask
        source.asked[correlation] = rid
        receiver.serving[rid] = None
        receiver.outstanding += 1
        receiver.chosen = rid & ~RID_BASE
        words[0], words[1], words[2], words[3], words[4] = rid, source.uid, correlation, receiver.uid, KIND_REQUEST
        self.append_words(RECORD_ASK, words, 5)
        self.write_delivery(
            receiver.manager, entry, (<uint64_t*>(entry + 24))[0], 0, 1, <char*>&receiver.recipient, 8, rid, source, 0,
        )
        return DONE

    cdef int response(self, int manager, char* entry, char* head, Attachment source) except -1:
        cdef uint64_t rid = (<uint64_t*>(head + 16))[0]
        cdef uint64_t words[2]
        cdef PyObject* found
        cdef Ask ask
        cdef Attachment requester
        if (<uint8_t*>head)[4] != KIND_RESPONSE or rid < RID_BASE:
            return LONG_WAY
        found = PyDict_GetItem(self.asks, rid)
        if found == NULL:
            return LONG_WAY
        ask = <Ask>found
        if ask.kind != KIND_REQUEST or source.uid not in ask.awaiting:
            return LONG_WAY
        found = PyDict_GetItem(self.by_uid, ask.requester)
        if found == NULL:
            return LONG_WAY
        requester = <Attachment>found
        if not self.fits(requester.manager, DOWN_RECIPIENTS + 8 + (<uint32_t*>(entry + 40))[0] + len(source.from_pair)):
            return BLOCKED
        self.messages += 1
        if (<uint8_t*>head)[5] & FLAG_LAST:
            words[0], words[1] = rid, source.uid
            self.append_words(RECORD_ANSWERED, words, 2)
            if rid in source.serving:
                del source.serving[rid]
                source.outstanding -= 1
            del self.asks[rid]
            requester.asked.pop(ask.correlation, None)
        self.write_delivery(
            requester.manager, entry, (<uint64_t*>(entry + 24))[0], 0, 1, <char*>&requester.recipient, 8,
            ask.correlation, source, 0,
        )
        return DONE

    cdef int long_way(self, int manager, char* entry, uint64_t now_ns) except -1:
        """Everything else, as `decisions.py` says. LONG_WAY as an answer means: again."""
        cdef uint8_t kind = (<uint8_t*>entry)[4]
        cdef uint64_t uid = (<uint64_t*>(entry + 16))[0]
        cdef uint64_t handle = (<uint64_t*>(entry + 24))[0]
        cdef uint32_t index = (<uint32_t*>(entry + 32))[0]
        cdef uint32_t body_length = (<uint32_t*>(entry + 36))[0]
        cdef uint32_t content_length = (<uint32_t*>(entry + 40))[0]
        cdef bytes content = PyBytes_FromStringAndSize(entry + UP_CONTENT, content_length)
        source = self.by_conn.get(uid)
        decision = None
        self.routing.next_request = max(self.routing.next_request, self.next_request)
        try:
            if kind == UP_MESSAGE:
                decision = self.decisions.on_message(manager, source, handle, body_length, content, now_ns)
            elif kind == UP_ATTACH:
                if source is None:
                    decision = self.decisions.on_attach(manager, uid, index, content)
            elif source is None:
                pass
            elif kind == UP_CONTROL:
                decision = self.decisions.on_control(source, content)
            elif kind == UP_RESPONSE:
                decision = self.decisions.on_response(source, content)
            elif kind == UP_GONE:
                decision = self.decisions.on_gone(source)
            elif kind == UP_UNDELIVERED:
                decision = self.decisions.on_undelivered(content)
        except Exception:
            decision = self.decisions.on_failure(manager, kind, source, handle, content)
        if decision is None:
            return DONE
        if not self.all_fit(decision.instructions):
            return BLOCKED
        if kind == UP_MESSAGE:
            self.messages += 1
        self.do_decision(decision)
        return LONG_WAY if decision.again else DONE

    def carry_out(self, decision):
        """For decisions that no entry asked for (the clock): False when there was no room, nothing was done then."""
        if not self.all_fit(decision.instructions):
            return False
        self.do_decision(decision)
        return True

    cdef int do_decision(self, decision) except -1:
        for kind, payload in decision.records:
            self.routing.apply(kind, payload)
            self.append(kind, payload)
        if decision.records:
            self.last_topic = None
            self.last_route = None
            self.last_source = None
        for instruction in decision.instructions:
            self.write_instruction(instruction)
        self.refused += decision.refused
        self.changed = True
        return 0

    # -- room and writing

    cdef bint fits(self, int manager, uint64_t size) noexcept:
        cdef Producer down = <Producer>self.downs[manager]
        if self.has_room(down, size, 1, size):
            return True
        down.want_c()
        if self.has_room(down, size, 1, size):
            down.unwant_c()
            return True
        return False

    cdef inline bint has_room(self, Producer down, uint64_t size, uint64_t count, uint64_t largest) noexcept:
        # The end of the ring may have to be skipped: room for the largest entry once more is always enough.
        if down.entries_max and down.waiting_c() + count > (down.entries_max if down.entries_max > count else count):
            return False
        if down.tail + size + largest + 16 <= down.head_seen + down.capacity:
            return True
        return down.room_c() >= size + largest + 16

    cdef bint all_fit(self, list instructions) except *:
        cdef uint64_t sizes[MANAGERS_MAX]
        cdef uint64_t largest[MANAGERS_MAX]
        cdef uint64_t counts[MANAGERS_MAX]
        cdef uint64_t size
        cdef int i
        cdef bint fits = True
        for i in range(self.managers):
            sizes[i] = largest[i] = counts[i] = 0
        for instruction in instructions:
            i = instruction.manager
            size = DOWN_RECIPIENTS + len(instruction.recipients) + len(instruction.content) + 8
            sizes[i] += size
            counts[i] += 1
            if size > largest[i]:
                largest[i] = size
        for i in range(self.managers):
            if counts[i] and not self.has_room(<Producer>self.downs[i], sizes[i], counts[i], largest[i]):
                (<Producer>self.downs[i]).want_c()
                if self.has_room(<Producer>self.downs[i], sizes[i], counts[i], largest[i]):
                    (<Producer>self.downs[i]).unwant_c()
                else:
                    fits = False
        return fits

    cdef int write_delete(self, int manager, uint64_t handle) except -1:
        cdef Producer down = <Producer>self.downs[manager]
        cdef char* to
        if not self.fits(manager, DOWN_RECIPIENTS):
            self.messages -= 1
            return BLOCKED
        to = down.reserve(DOWN_RECIPIENTS, 0)
        (<uint64_t*>(to + 16))[0] = handle
        (<uint64_t*>(to + 24))[0] = 1 << 8           # touch 0, limit 1, no recipients
        (<uint64_t*>(to + 32))[0] = 0
        down.commit(to, DOWN_RECIPIENTS, DOWN_DELETE, COUNTED)
        self.deletes += 1
        return DONE

    cdef void write_delivery(
        self, int manager, char* entry, uint64_t handle, int touch, int limit, char* recipients, uint64_t recipients_size,
        uint64_t correlation, Attachment source, uint16_t strip,
    ) noexcept:
        cdef Producer down = <Producer>self.downs[manager]
        cdef char* head = entry + UP_CONTENT
        cdef uint32_t content = (<uint32_t*>(entry + 40))[0]
        cdef uint32_t body_length = (<uint32_t*>(entry + 36))[0]
        cdef uint16_t topic_length = (<uint16_t*>(head + 6))[0]
        cdef uint32_t pair = <uint32_t>PyBytes_GET_SIZE(source.from_pair)
        cdef uint64_t size = DOWN_RECIPIENTS + recipients_size + content + pair - strip
        cdef char* to = down.reserve(size, 0)
        cdef char* new
        (<uint64_t*>(to + 16))[0] = handle
        (<uint8_t*>to)[24] = touch
        (<uint8_t*>to)[25] = limit
        (<uint16_t*>(to + 26))[0] = 0
        (<uint32_t*>(to + 28))[0] = <uint32_t>(recipients_size // 8)
        (<uint32_t*>(to + 32))[0] = content + pair - strip
        (<uint32_t*>(to + 36))[0] = body_length
        memcpy(to + DOWN_RECIPIENTS, recipients, recipients_size)
        new = to + DOWN_RECIPIENTS + recipients_size
        if strip:  # the message manager's, which has no pair
            memcpy(new, head, HEAD)
            memcpy(new + HEAD, head + HEAD + strip, content - HEAD - strip)
            (<uint16_t*>(new + 6))[0] = topic_length - strip
        elif pair == 0:
            memcpy(new, head, content)
        else:
            memcpy(new, head, HEAD + topic_length)
            memcpy(new + HEAD + topic_length, PyBytes_AS_STRING(source.from_pair), pair)
            memcpy(new + HEAD + topic_length + pair, head + HEAD + topic_length, content - HEAD - topic_length)
            (<uint8_t*>new)[5] |= FLAG_IDENTITY
            (<uint32_t*>(new + 8))[0] += pair
        (<uint32_t*>new)[0] = content + pair - strip + body_length
        (<uint64_t*>(new + 16))[0] = correlation
        (<uint64_t*>(new + 24))[0] = source.uid
        down.commit(to, size, DOWN_DELIVER, COUNTED)
        self.deliveries += recipients_size // 8

    cdef int write_instruction(self, i) except -1:
        cdef Producer down = <Producer>self.downs[<int>i.manager]
        cdef bytes recipients = i.recipients
        cdef bytes content = i.content
        cdef uint64_t size = DOWN_RECIPIENTS + len(recipients) + len(content)
        cdef char* to = down.reserve(size, 0)
        assert to != NULL, "room was looked for before"
        (<uint64_t*>(to + 16))[0] = i.handle
        (<uint8_t*>to)[24] = i.touch
        (<uint8_t*>to)[25] = i.limit
        (<uint16_t*>(to + 26))[0] = 0
        (<uint32_t*>(to + 28))[0] = len(recipients) // 8
        (<uint32_t*>(to + 32))[0] = len(content)
        (<uint32_t*>(to + 36))[0] = i.body_length
        memcpy(to + DOWN_RECIPIENTS, PyBytes_AS_STRING(recipients), len(recipients))
        memcpy(to + DOWN_RECIPIENTS + len(recipients), PyBytes_AS_STRING(content), len(content))
        down.commit(to, size, i.kind, COUNTED)
        if i.kind == DOWN_DELIVER:
            self.deliveries += len(recipients) // 8
        elif i.kind == DOWN_DELETE:
            self.deletes += 1
        return 0

    # -- sleeping

    def sleep(self):
        """True: no ring that could be served has anything, and whoever writes will wake us."""
        cdef int i
        cdef bint quiet = True
        for i in range(self.managers):
            if not (self.blocked >> i) & 1:
                if not (<Consumer>self.ups[i]).sleep_c():
                    quiet = False
        return quiet

    def awake(self):
        cdef int i
        for i in range(self.managers):
            (<Consumer>self.ups[i]).awake_c()


import sys as _sys

made_of = _sys.modules[__name__]
