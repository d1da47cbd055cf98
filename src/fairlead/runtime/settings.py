"""Every setting of the server: its type, its default, and what moving it up or down costs.

The sentence of a setting is kept with it; docs/configuration.md and `fairlead config show` are made from
here. `config` reads values for these; a process gets them as one frozen `Config`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct

from fairlead.cluster.parameters import Kind, Parameters

PREFIX = "FAIRLEAD_"
MANAGERS_MAX = 30  # as many as fit into the router's commit record, see docs/store.md


class Server(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the server lives and listens."""

    data: Annotated[
        str,
        Meta(
            description="Directory of everything the server keeps; a second server on the same directory is refused. "
            "$XDG_DATA_HOME/fairlead where that variable is set."
        ),
    ] = "~/.local/share/fairlead"
    listen: Annotated[
        list[str],
        Meta(
            min_length=1,
            description="Addresses clients connect to: HOST:PORT, [IPV6]:PORT or unix:PATH. An empty host means all "
            "interfaces. Anything but loopback and unix needs a users file, or `insecure`.",
        ),
    ] = msgspec.field(default_factory=lambda: ["127.0.0.1:7400"])
    managers: Annotated[
        int,
        Meta(
            ge=0,
            le=MANAGERS_MAX,
            description="Connection managers, the processes that hold the clients; 0 means one per core. More than "
            "cores costs memory (an arena each) and wake-ups, fewer leaves cores idle.",
        ),
    ] = 0
    insecure: Annotated[
        bool, Meta(description="Listen beyond this host even though anybody could connect. For closed networks only.")
    ] = False
    backlog: Annotated[
        int,
        Meta(
            ge=1,
            description="Connections the kernel holds while the dispatcher is busy or being replaced. Lower makes "
            "bursts of new clients fail, higher only costs kernel memory while they wait.",
        ),
    ] = 1024


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much one client, and all clients together, may take."""

    connections_per_manager: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="Places in the connection table per manager (512 bytes each, reserved at start). When all are "
            "taken, newcomers get `server-full`. Needs as many file descriptors per manager process.",
        ),
    ] = 8192
    header_max: Annotated[
        int,
        Meta(
            ge=1024,
            le=65536,
            description="Bytes of fixed part, topic and headers of one frame. Lower refuses clients that put data into "
            "headers; the protocol allows no more than 65,536.",
        ),
    ] = 65536
    frame_max: Annotated[
        int,
        Meta(
            ge=131072,
            description="Bytes of one frame. Higher lets one frame occupy a connection, and memory, for longer; "
            "larger bodies travel in fragments anyway.",
        ),
    ] = 1114112
    body_max: Annotated[
        int,
        Meta(
            ge=1024,
            description="Bytes of one message body, fragments put together. Must fit into an arena several times over, "
            "or large messages wait for each other.",
        ),
    ] = 67108864
    subscriptions_per_client: Annotated[
        int,
        Meta(ge=1, description="Subscriptions of one client. Higher lets a single client fill the routing segment."),
    ] = 10000
    registrations_per_client: Annotated[
        int,
        Meta(ge=1, description="Topics one client may serve requests for. Costs routing memory like subscriptions."),
    ] = 1000
    requests_per_client: Annotated[
        int,
        Meta(
            ge=1,
            description="Open requests and conversations of one client. Lower slows clients that pipeline, higher lets "
            "one that forgets its requests hold routing memory.",
        ),
    ] = 65536
    slow_client_messages: Annotated[
        int,
        Meta(
            ge=1,
            description="Messages that may wait for one client before it is cut off with `slow-client`. Higher "
            "forgives longer pauses and lets one slow client hold more of the arena.",
        ),
    ] = 100_000
    slow_client_bytes: Annotated[
        int, Meta(ge=65536, description="The same, in bytes of bodies and headers. The lower of both counts.")
    ] = 67108864
    preface_s: Annotated[
        float,
        Meta(
            gt=0,
            description="Time for a client's first eight bytes. Higher lets silent connections hold places for longer.",
        ),
    ] = 5.0
    handshake_s: Annotated[
        float, Meta(gt=0, description="Time from the confirmation to a complete CONNECT, TLS included.")
    ] = 30.0
    keep_alive_s: Annotated[
        float,
        Meta(
            gt=0,
            description="Silence after which a client is asked for a sign of life; it is cut off after twice that. "
            "Lower finds dead peers sooner and wakes idle ones more often. A client may ask for less, not more.",
        ),
    ] = 30.0
    ready_s: Annotated[
        float,
        Meta(
            gt=0,
            description="Time a successor has to become ready in a live update; after it the old one simply goes on.",
        ),
    ] = 10.0
    parked_s: Annotated[
        float,
        Meta(
            ge=0,
            description="How long the predecessor of a live update stays, to take back over at once if the successor "
            "fails. Costs one idle process for that time.",
        ),
    ] = 10.0
    frozen_s: Annotated[
        float,
        Meta(
            gt=0,
            description="How long a process may have work and make no progress before it is killed and replaced. "
            "Lower heals sooner, but a machine that swaps looks frozen too.",
        ),
    ] = 5.0


class Fairness(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who gets served next. Smaller numbers bound the wait of quiet clients, larger ones help throughput."""

    messages_per_round: Annotated[
        int,
        Meta(
            ge=1,
            description="Messages a manager takes from one connection per round while others wait. Higher lets a "
            "flooding connection get further ahead of quiet ones.",
        ),
    ] = 1
    limit: Annotated[
        int,
        Meta(
            ge=1,
            description="Client messages in a manager's internal queue at which it stops reading (one more per client "
            "still gets in). Lower is fairer, higher takes longer bursts.",
        ),
    ] = 1000
    resume_below: Annotated[
        int,
        Meta(
            ge=1, description="Reading goes on when the queue is shorter than this. Closer to `limit` means more stops."
        ),
    ] = 100
    queue_bytes: Annotated[
        int,
        Meta(
            ge=65536,
            description="Bytes of each ring between a manager and the router, a power of two. Holds handles and "
            "headers, not bodies; higher hides longer pauses of the router.",
        ),
    ] = 4194304
    queue_entries: Annotated[
        int,
        Meta(
            ge=0,
            description="Client messages a manager's ring may hold; 0 means that only `limit` bounds them. Small rings "
            "(10, 100) make the router's turns shorter and fairer, at a price in throughput.",
        ),
    ] = 0
    router_rule: Annotated[
        Literal["round-complete", "simple"],
        Meta(
            description="`round-complete`: the router takes whole rounds of each manager in turn, so that clients of "
            "busy and of quiet managers get equal shares. `simple`: `simple_messages` of each."
        ),
    ] = "round-complete"
    simple_messages: Annotated[
        int, Meta(ge=1, description="With the simple rule: messages taken from one manager per turn.")
    ] = 1


class Store(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shared memory that outlives the processes."""

    directory: Annotated[
        str,
        Meta(
            description="Where the segments are. Empty means tmpfs when it has room, else the data directory, where "
            "every message costs disk writes sooner or later."
        ),
    ] = ""
    arena_bytes: Annotated[
        int,
        Meta(
            ge=1048576,
            description="Room for message bodies per manager. When it is used up, publishers on that manager wait. "
            "Reserved as address space; memory is taken in steps when it is needed.",
        ),
    ] = 268435456
    arena_step_bytes: Annotated[
        int,
        Meta(
            ge=65536,
            description="How much memory an arena takes at a time. Lower keeps an idle server small, higher makes "
            "the first bursts smoother.",
        ),
    ] = 4194304
    routing_bytes: Annotated[
        int,
        Meta(
            ge=1048576,
            description="Room for attachments, subscriptions, open requests and what spills from full rings. When it "
            "is used up, new subscriptions and requests are refused. Address space until it is used.",
        ),
    ] = 268435456


class Requests(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How requests find their receiver."""

    hold_s: Annotated[
        float,
        Meta(
            ge=0,
            description="How long a request waits for a receiver to register before it fails with `no-receiver`. "
            "0 answers at once; more hides restarts of receivers and holds their requests in memory.",
        ),
    ] = 0.0
    balance: Annotated[
        Literal["fewest-outstanding", "round-robin"],
        Meta(
            description="Which of several receivers gets a request. `fewest-outstanding` follows their speed, "
            "`round-robin` gives all the same number."
        ),
    ] = "fewest-outstanding"


class Messages(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Queues and durable topics: the message manager and its journal."""

    enabled: Annotated[
        bool,
        Meta(
            description="Start a message manager. Without one there are no queues and no durable topics; everything "
            "transient works."
        ),
    ] = True
    site_id: Annotated[
        int,
        Meta(
            ge=0,
            le=65535,
            description="Part of every message id. Give installations whose messages meet different numbers, in case "
            "their hosts have the same private address.",
        ),
    ] = 0
    sync: Annotated[
        Literal["always", "memory"],
        Meta(
            description="`always`: what is confirmed is on stable storage. `memory`: confirmed when handed to the "
            "kernel, which survives a crash of the process but not of the machine; `status` says so."
        ),
    ] = "always"
    flush_wait_ms: Annotated[
        float,
        Meta(
            ge=0,
            le=1000,
            description="How long a flush may wait for company while another is under way. Higher makes larger "
            "batches on slow disks, and later confirms.",
        ),
    ] = 2.0
    segment_bytes: Annotated[
        int,
        Meta(
            ge=1048576,
            le=1 << 34,
            description="Bytes of one file of the journal. A file is reused once nothing in it is needed: larger ones "
            "cost fewer files and hold room for longer.",
        ),
    ] = 67108864
    quota_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Bytes the journal may take on disk; producers are blocked at it, consumers go on. 0: what "
            "the file system has.",
        ),
    ] = 0
    checkpoint_bytes: Annotated[
        int,
        Meta(
            ge=1048576,
            description="A checkpoint is begun after so many bytes of journal. Lower makes restarts quicker and "
            "writes more.",
        ),
    ] = 268435456
    checkpoint_s: Annotated[
        float, Meta(gt=0, description="And after so much time, if anything was written since the last one.")
    ] = 600.0
    cache_bytes: Annotated[
        int,
        Meta(
            ge=1048576,
            description="Memory for messages on their way. Consumers that are further behind than this read from disk.",
        ),
    ] = 33554432
    large_bytes: Annotated[
        int,
        Meta(
            ge=4096,
            le=1048576,
            description="Messages longer than this travel in fragments and are kept in files of their own.",
        ),
    ] = 1048576
    fragment_bytes: Annotated[
        int,
        Meta(
            ge=4096,
            le=1048576,
            description="Bytes of one fragment of such a message. Smaller ones mix better with other traffic of the "
            "same connection, larger ones cost less.",
        ),
    ] = 262144
    window_messages: Annotated[
        int,
        Meta(
            ge=1,
            description="Messages a client may have sent without a confirm. Higher hides longer flushes and costs "
            "memory in client and server.",
        ),
    ] = 10000
    window_bytes: Annotated[int, Meta(ge=65536, description="The same in bytes. The lower of both counts.")] = 8388608
    high_water_commands: Annotated[
        int,
        Meta(ge=1, description="Commands waiting for one destination or session at which its producers are blocked."),
    ] = 1000
    low_water_commands: Annotated[
        int, Meta(ge=0, description="They are released below this. Closer to the high mark means more signals.")
    ] = 500
    high_water_bytes: Annotated[int, Meta(ge=65536, description="The same as `high_water_commands`, in bytes.")] = (
        8388608
    )
    low_water_bytes: Annotated[int, Meta(ge=0, description="The same as `low_water_commands`, in bytes.")] = 4194304
    resend_retention_s: Annotated[
        float,
        Meta(
            ge=1,
            description="How long a lost session can be resumed, and the outcome of its transactions be asked for. "
            "Longer keeps more of them in memory and journal.",
        ),
    ] = 600.0
    stage_retention_s: Annotated[
        float,
        Meta(
            ge=1,
            description="How long a stage of a batch is kept without a word of who fills it. Shorter frees the disk "
            "sooner, longer lets a job be away for longer before it publishes.",
        ),
    ] = 86400.0
    pool_threads: Annotated[
        int, Meta(ge=0, le=1024, description="Threads for blocking work; 0 means four per core, at least eight.")
    ] = 0
    recovery_s: Annotated[
        float,
        Meta(
            gt=0,
            description="Time the message manager has for reading its journal after a start before it counts as "
            "hanging. The server is ready only after it.",
        ),
    ] = 600.0
    faults: Annotated[
        str,
        Meta(description="For tests of the server itself: faults to provoke in the journal. Leave empty."),
    ] = ""


class Destination(Parameters, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One `[destinations.NAME]`: created at start if it is not there, and given these parameters."""

    kind: Kind = "queue"

    def parameters(self) -> Parameters:
        return Parameters(**{name: getattr(self, name) for name in Parameters.__struct_fields__})


class Security(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may connect, and how the line is protected."""

    users: Annotated[
        str,
        Meta(
            description="The users file (`fairlead user --help`). Empty means users.toml in the data directory, if any."
        ),
    ] = ""
    tls_certificate: Annotated[
        str, Meta(description="Certificate chain (PEM). With it clients may use TLS on the same port.")
    ] = ""
    tls_key: Annotated[str, Meta(description="Private key of the certificate (PEM), without a passphrase.")] = ""
    client_certificates: Annotated[
        Literal["off", "ask", "require"],
        Meta(
            description="Certificates of clients, signed by `tls_client_ca`. `ask`: who shows one is the user it "
            "names; `require`: nobody gets in without one, over whatever line, but the server's own programs."
        ),
    ] = "off"
    tls_client_ca: Annotated[
        str, Meta(description="Certificates (PEM) of those who may sign the certificates of clients.")
    ] = ""
    tls_crl: Annotated[
        str,
        Meta(
            description="List of revoked client certificates (PEM), from the same signer. Once it is set, a list that "
            "has expired lets no certificate in: replace it in time, and run `fairlead reload`."
        ),
    ] = ""
    certificate_user: Annotated[
        Literal["cn", "san-uri", "san-dns", "san-email"],
        Meta(
            description="What in a client's certificate is the name of the user: the common name of its subject, or "
            "its alternative name of that kind. There must be exactly one. `certificates` of a user in the users file "
            "names certificates that stand for that user whatever they say."
        ),
    ] = "cn"
    certificate_groups: Annotated[
        bool, Meta(description="Whether the organisational units (OU) of a certificate are groups of the user.")
    ] = False
    allow_anonymous: Annotated[
        bool | None,
        Meta(
            description="May a client connect without a name? When not set: only if there is no users file, no tokens "
            "are taken and no certificate is required."
        ),
    ] = None
    plain_passwords: Annotated[
        Literal["local", "allow", "never"],
        Meta(
            description="From where a password is taken without TLS, so that whoever is on the way can read it. "
            "`local`: from this host only (with `[server] insecure`: from everywhere); `allow`: from everywhere; "
            "`never`: not even from this host. Tunnels over plain HTTP are taken from the same places."
        ),
    ] = "local"
    duplicate_instance: Annotated[
        Literal["allow", "refuse"],
        Meta(
            description="What a second connection with the same type and instance gets. `refuse` makes names unique, "
            "and keeps a restarted client out until its old connection is found dead."
        ),
    ] = "allow"


class Tokens(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Logins by token (JWT), from an identity provider or from `fairlead user token` (docs/security.md)."""

    keys: Annotated[
        str,
        Meta(
            description="Keys of the provider: a file (a secret, a public key in PEM, or a JWKS), or the https:// URL "
            "of a JWKS. Empty: none. Tokens of the server's own, token-keys.json in the data directory, are taken too."
        ),
    ] = ""
    keys_ca: Annotated[
        str, Meta(description="Certificates (PEM) to trust for that URL; empty means whom the system trusts.")
    ] = ""
    issuer: Annotated[str, Meta(description="What `iss` of a token must be; empty means that it is not looked at.")] = (
        ""
    )
    audience: Annotated[
        list[str],
        Meta(
            description="Names of this server: a token must have one of them in `aud`, so that one made for another "
            "service does not open this one. `*` alone takes any name."
        ),
    ] = msgspec.field(default_factory=list)
    algorithms: Annotated[
        list[Literal["HS256", "HS384", "HS512", "RS256", "PS256", "ES256", "EdDSA"]],
        Meta(description="How tokens may be signed. A key is used only for algorithms of its own kind anyway."),
    ] = msgspec.field(default_factory=lambda: ["HS256", "HS384", "HS512", "RS256", "PS256", "ES256", "EdDSA"])
    leeway_s: Annotated[
        float, Meta(ge=0, le=300, description="By how much clocks may differ, for `exp`, `nbf` and `iat`.")
    ] = 30.0
    user_claim: Annotated[str, Meta(min_length=1, description="The claim with the name of the user.")] = "sub"
    groups_claim: Annotated[
        str, Meta(description="The claim with a list of groups, or one; empty means that there are none.")
    ] = "groups"
    tenant_claim: Annotated[str, Meta(description="The claim with the tenant; empty means that there is none.")] = ""
    refresh_s: Annotated[
        float,
        Meta(
            ge=1,
            description="How old keys may be before they are read again, when a token comes. A token of a key that is "
            "not known has them read at once, but not more than every few seconds.",
        ),
    ] = 300.0
    stale_s: Annotated[
        float, Meta(ge=1, description="How long keys are relied on while their URL does not answer.")
    ] = 86400.0


class Links(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Other servers, so that clients of all of them reach each other (docs/sites.md)."""

    parents: Annotated[
        list[str],
        Meta(
            description="URLs of the servers above this one in the tree; several are hubs, which stand in for each "
            "other. With any, a bridge process is started. `fairlead://USER:PASSWORD@HOST:PORT`."
        ),
    ] = msgspec.field(default_factory=list)
    own: Annotated[
        str,
        Meta(
            description="URL by which the bridge reaches this server itself; empty means the first of `listen`. Needed "
            "where users have passwords."
        ),
    ] = ""
    tls_ca: Annotated[
        str, Meta(description="Certificates (PEM) to trust for fairleads:// parents; empty: whom the system trusts.")
    ] = ""
    tls_certificate: Annotated[
        str, Meta(description="Certificate (PEM) the bridge shows to servers over TLS that ask for one.")
    ] = ""
    tls_key: Annotated[str, Meta(description="Private key of that certificate (PEM), without a passphrase.")] = ""
    queue_bytes: Annotated[
        int,
        Meta(
            ge=65536,
            description="Bytes of broadcasts that wait in the bridge for one server, because its link is lost or slow. "
            "Beyond that the oldest are given up, counted and logged. Higher costs memory while a link is lost.",
        ),
    ] = 67108864
    hold_s: Annotated[
        float,
        Meta(
            ge=0,
            description="How long broadcasts are kept for a parent whose link is lost, when there is no other way. "
            "0: not at all.",
        ),
    ] = 60.0
    durable: Annotated[
        list[str],
        Meta(
            description="Durable topics, by name or pattern, whose messages are carried to and from the parents: "
            "stored at each server, none lost and none twice."
        ),
    ] = msgspec.field(default_factory=list)


class Tunnel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Clients behind firewalls and proxies, which reach this server through HTTP (docs/tunnel.md)."""

    enabled: Annotated[
        bool,
        Meta(
            description="Take HTTP (with a certificate: HTTPS too) on the ports of `listen`. The processes for it are "
            "started by the first request; until then it costs nothing."
        ),
    ] = True
    name: Annotated[
        str,
        Meta(
            pattern="^[A-Za-z0-9._-]{1,128}$",
            description="The server id: `http://HOST:PORT/tunnel/NAME` names this server. Give servers that share a "
            "gateway different ones.",
        ),
    ] = "fairlead"
    link_listen: Annotated[
        str,
        Meta(
            description="HOST:PORT on which brokers elsewhere may link to this server's gateway (port 7401 by custom); "
            "empty: none. Beyond this host it needs a certificate, and `link_secret_file` or `link_ca`."
        ),
    ] = ""
    link_secret_file: Annotated[
        str,
        Meta(
            description="File with the secret of gateways and brokers, readable by its owner only: make it with "
            "`fairlead node secret FILE` and give it to both."
        ),
    ] = ""
    link_ca: Annotated[
        str,
        Meta(
            description="Certificates (PEM) of those who may sign certificates of brokers: one that links here must "
            "show one with its server id (`name`) as common name or DNS name. May stand in for `link_secret_file`."
        ),
    ] = ""
    link_certificate: Annotated[
        str, Meta(description="Certificate (PEM) this server shows to gateways elsewhere that ask for one.")
    ] = ""
    link_key: Annotated[str, Meta(description="Private key of that certificate (PEM), without a passphrase.")] = ""
    gateways: Annotated[
        list[str],
        Meta(
            description="Gateways elsewhere which this server links to, so that clients reach it through them: "
            "HOST:PORT, always with TLS. Needs a users file, or `insecure`: whoever reaches the gateway reaches this "
            "server."
        ),
    ] = msgspec.field(default_factory=list)
    gateway_ca: Annotated[
        str,
        Meta(description="Certificate authority (PEM) of those gateways; empty: the ones this host trusts."),
    ] = ""
    allow_v1: Annotated[
        bool,
        Meta(
            description="Take clients of version 1 too, whose tunnels have no token: an id is enough to take one over."
        ),
    ] = False
    tunnels: Annotated[
        int, Meta(ge=1, description="Tunnels at a time through this server's gateway; newcomers beyond are refused.")
    ] = 10_000
    tunnels_per_address: Annotated[
        int,
        Meta(
            ge=1,
            description="Of these, from one address. Clients behind one proxy have one address together; lower keeps a "
            "single host from taking all.",
        ),
    ] = 1000
    opens_per_s: Annotated[
        float, Meta(gt=0, description="New tunnels in a second. Lower slows attacks, and herds that come back.")
    ] = 200.0
    buffer_bytes: Annotated[
        int,
        Meta(ge=1048576, description="Bytes that wait in the gateway for all clients together; more is not taken."),
    ] = 536870912
    body_bytes: Annotated[
        int,
        Meta(
            ge=65536,
            le=67108864,
            description="Bytes of one HTTP body in either direction. Proxies may allow less: clients find out.",
        ),
    ] = 1048576
    hold_s: Annotated[
        float,
        Meta(
            ge=0,
            le=300,
            description="How long a client's question for packets may be held open when there are none. Must be less "
            "than what proxies on the way allow (often 30 or 60).",
        ),
    ] = 25.0
    inactivity_s: Annotated[
        float,
        Meta(
            ge=1,
            description="A client that has not asked for so long is gone. Longer survives longer breaks, shorter frees "
            "its tunnel sooner.",
        ),
    ] = 60.0
    grace_s: Annotated[
        float,
        Meta(
            ge=0,
            description="How long tunnels wait for a broker whose link was lost before they end.",
        ),
    ] = 15.0


class Directory(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Brokers and applications by name: this server keeps them, or is one of the brokers (docs/directory.md)."""

    serve: Annotated[
        bool,
        Meta(
            description="Keep the directory here: brokers and clients ask this server. In a cluster the group named "
            "`directory` keeps it, or the first one."
        ),
    ] = False
    servers: Annotated[
        str,
        Meta(
            description="Where the directory is that knows this server as a broker: "
            "`fairlead+directory://HOST:7402,HOST:7402`. Empty: this server itself if it serves one and has a `name`, "
            "else none."
        ),
    ] = ""
    name: Annotated[
        str,
        Meta(
            pattern="^[A-Za-z0-9._-]{0,128}$",
            description="Name of this server in the directory, unique among all that live. Empty: the name of the "
            "host.",
        ),
    ] = ""
    clusters: Annotated[
        list[str],
        Meta(
            description="Clusters this server joins when it starts. Those it has joined otherwise it stays in only if "
            "none are named here."
        ),
    ] = msgspec.field(default_factory=list)
    user: Annotated[
        str,
        Meta(description="As whom this server speaks to the directory; it needs the right `serve _BROKER.NAME` there."),
    ] = ""
    password_file: Annotated[
        str, Meta(description="File with the password of that user, readable by its owner only.")
    ] = ""
    advertise: Annotated[
        str,
        Meta(
            description="HOST:PORT under which clients reach this server, where it is not what it listens on: behind "
            "address translation, or when it listens on all interfaces."
        ),
    ] = ""
    limit: Annotated[
        int,
        Meta(
            ge=0,
            description="Connections of applications this server takes, over all clusters; more are refused as `full` "
            "and the directory chooses others. 0: none at all.",
        ),
    ] = 2000
    lease_s: Annotated[
        float,
        Meta(
            gt=0,
            description="Of the directory: a broker that has not renewed for so long counts as dead. Brokers renew "
            "three times as often. Lower finds dead ones sooner, and takes pauses for deaths.",
        ),
    ] = 15.0
    reserve_s: Annotated[
        float,
        Meta(
            gt=0,
            description="Of the directory: how long a broker it chose counts as one connection fuller while nobody "
            "reports that it was opened.",
        ),
    ] = 10.0
    suspect_s: Annotated[
        float,
        Meta(
            gt=0,
            description="Of the directory: how long a broker is passed over that two clients could not reach within "
            "this time.",
        ),
    ] = 10.0
    heuristic: Annotated[
        Literal["centralised", "decentralised", "auto"],
        Meta(
            description="Of the directory: who chooses the broker, where neither cluster nor client say so. "
            "`centralised`: the directory, exactly even. `decentralised`: each client from its copy, without asking. "
            "`auto`: the directory while it answers quickly."
        ),
    ] = "auto"
    rule: Annotated[
        Literal["rotation", "least_connections"],
        Meta(
            description="Of the directory: how a broker is chosen, where the cluster does not say so. "
            "`least_connections` repairs what closed connections left uneven."
        ),
    ] = "rotation"


class Streams(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Feeds with two adapters each, between which programs change without a loss (docs/feeds.md)."""

    serve: Annotated[
        bool,
        Meta(
            description="Be the stream administration: adapters and programs ask this server. One server is enough; "
            "streams that are running do not need it."
        ),
    ] = False
    token_life_s: Annotated[
        float,
        Meta(
            ge=1,
            description="How long a program may connect to adapters without a word from the administration; renewed "
            "while it is there. Shorter ends forgotten rights sooner, longer survives longer absences.",
        ),
    ] = 3600.0
    grace_s: Annotated[
        float,
        Meta(
            ge=0,
            le=600,
            description="After a start: how long adapters that were here have to come back before another one is made "
            "active in their place.",
        ),
    ] = 3.0
    reports_missed: Annotated[
        int,
        Meta(
            ge=2,
            le=1000,
            description="An adapter that has missed so many reports, one each heartbeat interval, is taken for dead. "
            "Lower finds dead ones sooner, and takes pauses for deaths.",
        ),
    ] = 3
    relations: Annotated[
        list[str],
        Meta(
            description="How source streams are related, where adapters do not say it themselves: "
            "`STREAM: SOURCE RELATION OF [offset N] [start N]`, the relation being equivalent, successor or sibling."
        ),
    ] = msgspec.field(default_factory=list)


class Metrics(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the server tells a monitoring system (docs/observability.md)."""

    destinations: Annotated[
        int,
        Meta(
            ge=0,
            le=1000,
            description="Queues and topics that have metrics of their own; all others are shown together as `_other`. "
            "Each is twelve lines of every scrape, and twelve series in the database.",
        ),
    ] = 200


class Console(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The web page of this server, and the HTTP/JSON interface it stands on (docs/api.md)."""

    enabled: Annotated[
        bool, Meta(description="Start the console. It costs one process of some 40 MB; nothing else needs it.")
    ] = True
    listen: Annotated[
        list[str],
        Meta(
            min_length=1,
            description="Where browsers reach it: HOST:PORT or unix:PATH. Beyond loopback it speaks TLS with the "
            "server's certificate and needs a users file, or `insecure`. If the default port is taken another free one "
            "is used, and said; one that is set here must be free.",
        ),
    ] = msgspec.field(default_factory=lambda: ["127.0.0.1:7480"])
    hosts: Annotated[
        list[str],
        Meta(
            description="Names under which browsers reach it, such as `console.example.org`, with the port where it is "
            "another. Requests for any other name are refused, so that no site can point its own name at this console. "
            "Addresses and localhost need not be named."
        ),
    ] = msgspec.field(default_factory=list)
    history_s: Annotated[
        float,
        Meta(
            ge=60,
            le=2_678_400,
            description="How long figures are kept, one for every ten seconds; those of the last quarter of an hour "
            "for every second. A day costs about 70 kB a series in memory and in the data directory.",
        ),
    ] = 21_600.0
    destinations: Annotated[
        int,
        Meta(ge=0, le=10_000, description="Destinations whose depth is kept in the history, the busiest first."),
    ] = 50
    probe_s: Annotated[
        float,
        Meta(
            ge=0,
            le=60,
            description="How often a tiny message is sent through the server to measure its round trip. 0: never.",
        ),
    ] = 1.0
    session_s: Annotated[
        float, Meta(ge=60, description="How long a login lasts without a request before it has to be said again.")
    ] = 43_200.0
    live_clients: Annotated[
        int, Meta(ge=1, le=1000, description="Pages that may look on at a time; further ones are turned away.")
    ] = 32
    open_metrics: Annotated[
        bool, Meta(description="Let everybody who reaches the console read `/metrics`, also where there are users.")
    ] = False


class Log(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the server writes down."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="`debug` adds a line per control frame and is slow."),
    ] = "info"
    file: Annotated[
        str, Meta(description="Log file; empty means `log/fairlead.log` in the data directory. One older file is kept.")
    ] = ""
    format: Annotated[
        Literal["text", "json"],
        Meta(description="`json` writes each line as an object, for programs that gather logs."),
    ] = "text"
    file_bytes: Annotated[
        int,
        Meta(
            ge=65536,
            description="Size at which the log file is put aside as `.1`, replacing the one before: twice as much is "
            "the most it takes.",
        ),
    ] = 16_777_216


class Config(Struct, frozen=True, kw_only=True):
    """All of it. `origins` names, for each value that is not the default, where it was set."""

    server: Server = Server()
    limits: Limits = Limits()
    fairness: Fairness = Fairness()
    store: Store = Store()
    requests: Requests = Requests()
    messages: Messages = Messages()
    security: Security = Security()
    tokens: Tokens = Tokens()
    log: Log = Log()
    metrics: Metrics = Metrics()
    links: Links = Links()
    tunnel: Tunnel = Tunnel()
    directory: Directory = Directory()
    streams: Streams = Streams()
    console: Console = Console()
    destinations: dict[str, Destination] = {}
    agent: bool = False  # a client manager of a cluster: groups of other nodes keep the messages, an agent reaches them
    origins: dict[str, str] = {}


SECTIONS: dict[str, type[Struct]] = {
    "server": Server,
    "limits": Limits,
    "fairness": Fairness,
    "store": Store,
    "requests": Requests,
    "messages": Messages,
    "security": Security,
    "tokens": Tokens,
    "log": Log,
    "metrics": Metrics,
    "links": Links,
    "tunnel": Tunnel,
    "directory": Directory,
    "streams": Streams,
    "console": Console,
}


class Setting(NamedTuple):
    """One key of one section, as the reference page and `config show` need it."""

    section: str
    key: str
    type: Any
    default: Any
    description: str

    @property
    def name(self) -> str:
        return f"{self.section}.{self.key}"

    @property
    def variable(self) -> str:
        return f"{PREFIX}{self.section}_{self.key}".upper()


def _settings() -> Iterator[Setting]:
    for section, struct in SECTIONS.items():
        defaults = struct()
        for key, type_ in get_type_hints(struct, include_extras=True).items():
            meta = next(m for m in get_args(type_)[1:] if isinstance(m, Meta))
            yield Setting(section, key, type_, getattr(defaults, key), meta.description or "")


SETTINGS: dict[str, Setting] = {setting.name: setting for setting in _settings()}
VARIABLES: dict[str, Setting] = {setting.variable: setting for setting in SETTINGS.values()}


def value_of(config: Config, setting: Setting) -> Any:
    """The value in force of one setting."""
    return getattr(getattr(config, setting.section), setting.key)
