// A program that uses XFRM netlink sockets in every way that programs do, and says what it found.
// It runs under the preload library, against the scripted server of `server/mod.rs`; each argument
// names one check.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            printf("%s:%d: %s (errno %d %s)\n", __func__, __LINE__, #what, errno,                  \
                   strerror(errno));                                                               \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum { DELSA = 0x11, GETSA = 0x12, FLUSHSA = 0x1c, NEWSA = 0x10, HANG_UP = 0x20, LOSE = 0x21, HANG_UP_ONCE = 0x26, GO_AWAY = 0x27, STALL_ONCE = 0x29, HELD = 0x2a, RELEASE_ONCE = 0x2b };

static uint32_t last_seq;

static struct nlmsghdr request(uint16_t type, uint16_t flags) {
    return (struct nlmsghdr){.nlmsg_len = sizeof(struct nlmsghdr),
                             .nlmsg_type = type,
                             .nlmsg_flags = NLM_F_REQUEST | flags,
                             .nlmsg_seq = ++last_seq};
}

static int opened(int type) {
    int fd = socket(AF_NETLINK, type, NETLINK_XFRM);
    CHECK(fd >= 0);
    return fd;
}

static int bound(uint32_t groups) {
    int fd = opened(SOCK_RAW | SOCK_CLOEXEC);
    struct sockaddr_nl own = {.nl_family = AF_NETLINK, .nl_groups = groups};
    CHECK(!bind(fd, (void *)&own, sizeof(own)));
    return fd;
}

static struct sockaddr_nl name_of(int fd) {
    struct sockaddr_nl own;
    socklen_t len = sizeof(own);
    CHECK(!getsockname(fd, (void *)&own, &len));
    CHECK(len == sizeof(own) && own.nl_family == AF_NETLINK);
    return own;
}

// Reads an answer that must be there already.
static struct nlmsghdr answer(int fd) {
    char buffer[4096];
    ssize_t got = recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT);
    CHECK(got >= (ssize_t)sizeof(struct nlmsghdr));
    struct nlmsghdr h;
    memcpy(&h, buffer, sizeof(h));
    CHECK(h.nlmsg_len == (uint32_t)got);
    return h;
}

static void transact(int fd) {
    struct nlmsghdr h = request(DELSA, NLM_F_ACK);
    CHECK(send(fd, &h, sizeof(h), 0) == sizeof(h));
    CHECK(answer(fd).nlmsg_seq == h.nlmsg_seq);
}

static void names(void) {
    int fd = opened(SOCK_RAW);
    CHECK(name_of(fd).nl_pid == 0);
    struct sockaddr_nl own = {.nl_family = AF_NETLINK, .nl_groups = 0xc3};
    CHECK(bind(fd, (void *)&own, 11) == -1 && errno == EINVAL);
    own.nl_family = AF_UNIX;
    CHECK(bind(fd, (void *)&own, sizeof(own)) == -1 && errno == EINVAL);
    own.nl_family = AF_NETLINK;
    CHECK(!bind(fd, (void *)&own, sizeof(own)));
    CHECK(name_of(fd).nl_pid == (uint32_t)getpid() && name_of(fd).nl_groups == 0xc3);
    own.nl_pid = 12345;
    CHECK(bind(fd, (void *)&own, sizeof(own)) == -1 && errno == EINVAL);
    int second = bound(0);
    CHECK(name_of(second).nl_pid != name_of(fd).nl_pid && name_of(second).nl_pid != 0);
    int third = opened(SOCK_DGRAM);
    CHECK(!bind(third, (void *)&own, sizeof(own)) && name_of(third).nl_pid == 12345);
    struct sockaddr_nl peer = {0};
    socklen_t len = sizeof(peer);
    CHECK(!getpeername(fd, (void *)&peer, &len) && len == sizeof(peer));
    CHECK(peer.nl_family == AF_NETLINK && peer.nl_pid == 0);
    own.nl_pid = 0;
    CHECK(!connect(fd, (void *)&own, sizeof(own)));
    transact(fd);
    // An unbound socket gets a port with its first request.
    int fourth = opened(SOCK_RAW);
    transact(fourth);
    CHECK(name_of(fourth).nl_pid != 0);
}

static int option_of(int fd, int level, int name) {
    int value = -1;
    socklen_t len = sizeof(value);
    return getsockopt(fd, level, name, &value, &len) ? -errno : value;
}

static void options(void) {
    int fd = opened(SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC);
    CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK && fcntl(fd, F_GETFD) == FD_CLOEXEC);
    CHECK(option_of(fd, SOL_SOCKET, SO_TYPE) == SOCK_DGRAM);
    CHECK(option_of(fd, SOL_SOCKET, SO_DOMAIN) == AF_NETLINK);
    CHECK(option_of(fd, SOL_SOCKET, SO_PROTOCOL) == NETLINK_XFRM);
    CHECK(option_of(fd, SOL_SOCKET, SO_ERROR) == 0);
    CHECK(option_of(fd, SOL_NETLINK, 99) == -ENOPROTOOPT);
    int value = 1 << 20, on = 1, group = 3;
    CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, sizeof(value)));
    CHECK(!setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, sizeof(value)));
    CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &value, sizeof(value)));
    CHECK(option_of(fd, SOL_SOCKET, SO_RCVBUF) == 2 << 20);
    CHECK(!setsockopt(fd, SOL_NETLINK, NETLINK_EXT_ACK, &on, sizeof(on)));
    CHECK(!setsockopt(fd, SOL_NETLINK, NETLINK_GET_STRICT_CHK, &on, sizeof(on)));
    CHECK(option_of(fd, SOL_NETLINK, NETLINK_EXT_ACK) == 1);
    CHECK(option_of(fd, SOL_NETLINK, NETLINK_CAP_ACK) == 0);
    CHECK(!setsockopt(fd, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &group, sizeof(group)));
    CHECK(name_of(fd).nl_groups == 4);
    CHECK(!setsockopt(fd, SOL_NETLINK, NETLINK_DROP_MEMBERSHIP, &group, sizeof(group)));
    CHECK(name_of(fd).nl_groups == 0);
    group = 0;
    CHECK(setsockopt(fd, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &group, sizeof(group)) == -1);
    CHECK(setsockopt(fd, SOL_NETLINK, 99, &on, sizeof(on)) == -1 && errno == ENOPROTOOPT);
    CHECK(setsockopt(fd, SOL_NETLINK, NETLINK_EXT_ACK, &on, 3) == -1 && errno == EINVAL);
}

// The server takes 50 ms for each of these; the answer must be there when send() returns.
static void waits(void) {
    int fd = bound(0);
    errno = 77;
    transact(fd);
    CHECK(errno == 77);
    // A failure is answered without being asked for.
    struct nlmsghdr h = request(DELSA, 0);
    CHECK(send(fd, &h, sizeof(h), 0) == sizeof(h) && errno == 77);
    CHECK(answer(fd).nlmsg_type == NLMSG_ERROR);
    // A success is not, and nothing waits for it.
    h = request(NEWSA, 0);
    CHECK(send(fd, &h, sizeof(h), 0) == sizeof(h));
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    CHECK(poll(&ready, 1, 0) == 0);
    // An older answer does not stand for the newer one.
    h = request(DELSA, NLM_F_ACK);
    CHECK(send(fd, &h, sizeof(h), 0) == sizeof(h));
    h = request(DELSA, NLM_F_ACK);
    CHECK(send(fd, &h, sizeof(h), 0) == sizeof(h));
    CHECK(answer(fd).nlmsg_seq == h.nlmsg_seq - 1 && answer(fd).nlmsg_seq == h.nlmsg_seq);
    // Neither does an event.
    int listener = bound(1);
    h = request(FLUSHSA, NLM_F_ACK);
    CHECK(send(listener, &h, sizeof(h), 0) == sizeof(h));
    CHECK(answer(listener).nlmsg_type == FLUSHSA && answer(listener).nlmsg_type == NLMSG_ERROR);
    // Two requests in one datagram have two answers.
    struct nlmsghdr two[] = {request(DELSA, NLM_F_ACK), request(DELSA, NLM_F_ACK)};
    CHECK(send(fd, two, sizeof(two), 0) == sizeof(two));
    CHECK(answer(fd).nlmsg_seq == two[0].nlmsg_seq && answer(fd).nlmsg_seq == two[1].nlmsg_seq);
    // Nothing is sent, nothing comes, and the socket lives on.
    CHECK(send(fd, "", 0, 0) == 0);
    transact(fd);
}

static void sends(void) {
    int fd = bound(0);
    struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    struct nlmsghdr h = request(DELSA, NLM_F_ACK);
    CHECK(sendto(fd, &h, sizeof(h), 0, (void *)&kernel, sizeof(kernel)) == sizeof(h));
    CHECK(answer(fd).nlmsg_seq == h.nlmsg_seq);
    h = request(DELSA, NLM_F_ACK);
    CHECK(write(fd, &h, sizeof(h)) == sizeof(h));
    CHECK(answer(fd).nlmsg_seq == h.nlmsg_seq);
    h = request(DELSA, NLM_F_ACK);
    struct iovec parts[] = {{&h, 5}, {(char *)&h + 5, sizeof(h) - 5}};
    CHECK(writev(fd, parts, 2) == sizeof(h));
    CHECK(answer(fd).nlmsg_seq == h.nlmsg_seq);
    h = request(DELSA, NLM_F_ACK);
    struct msghdr message = {
        .msg_name = &kernel, .msg_namelen = sizeof(kernel), .msg_iov = parts, .msg_iovlen = 2};
    CHECK(sendmsg(fd, &message, 0) == sizeof(h));
    CHECK(answer(fd).nlmsg_seq == h.nlmsg_seq);
    CHECK(sendmsg(fd, NULL, 0) == -1 && errno == EFAULT);
}

static void ask(int fd) {
    struct nlmsghdr h = request(GETSA, 0);
    CHECK(send(fd, &h, sizeof(h), 0) == sizeof(h));
}

static void receives(void) {
    int fd = bound(0);
    // Through a volatile length the compiler cannot see that the buffer is large enough, so that
    // with _FORTIFY_SOURCE it calls the checking variants.
    char buffer[512];
    volatile size_t room = sizeof(buffer);
    struct sockaddr_nl from;
    socklen_t from_len = sizeof(from);

    ask(fd);
    struct iovec part = {buffer, 0};
    struct msghdr message = {
        .msg_name = &from, .msg_namelen = sizeof(from), .msg_iov = &part, .msg_iovlen = 1};
    CHECK(recvmsg(fd, &message, MSG_PEEK | MSG_TRUNC) == 240);
    CHECK(message.msg_flags & MSG_TRUNC && message.msg_namelen == sizeof(from));
    part.iov_len = sizeof(buffer);
    memset(&from, 0xff, sizeof(from));
    CHECK(recvmsg(fd, &message, 0) == 240 && !(message.msg_flags & MSG_TRUNC));
    CHECK(message.msg_namelen == 12 && from.nl_family == AF_NETLINK && from.nl_pid == 0);
    CHECK(((struct nlmsghdr *)buffer)->nlmsg_pid == name_of(fd).nl_pid);

    ask(fd);
    CHECK(recv(fd, buffer, 16, MSG_TRUNC | MSG_PEEK) == 240);
    CHECK(recv(fd, buffer, room, 0) == 240);
    ask(fd);
    memset(&from, 0xff, sizeof(from));
    from_len = 16;
    CHECK(recvfrom(fd, buffer, room, 0, (void *)&from, &from_len) == 240);
    CHECK(from_len == 12 && from.nl_family == AF_NETLINK && !from.nl_pid && !from.nl_groups);
    ask(fd);
    CHECK(recvfrom(fd, buffer, room, 0, NULL, NULL) == 240);
    ask(fd);
    CHECK(read(fd, buffer, room) == 240);
    ask(fd);
    struct iovec parts[] = {{buffer, 100}, {buffer + 100, 412}};
    CHECK(readv(fd, parts, 2) == 240);
    CHECK(recv(fd, buffer, room, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    CHECK(recvmsg(fd, NULL, 0) == -1 && errno == EFAULT);
}

static void copies(void) {
    int fd = bound(0);
    uint32_t port = name_of(fd).nl_pid;
    int all[] = {dup(fd), dup2(fd, 100), dup3(fd, 101, O_CLOEXEC), fcntl(fd, F_DUPFD, 102),
                 fcntl(fd, F_DUPFD_CLOEXEC, 103)};
    CHECK(dup2(fd, fd) == fd);
    CHECK(!close(fd));
    struct sockaddr_nl own;
    socklen_t len = sizeof(own);
    CHECK(getsockname(fd, (void *)&own, &len) == -1 && errno == EBADF);
    for (int i = 0; i < 5; i++) {
        CHECK(name_of(all[i]).nl_pid == port);
        transact(all[i]);
    }
    // The number is something else's now.
    int ends[2];
    CHECK(!pipe(ends) && (ends[0] == fd || ends[1] == fd));
    CHECK(write(ends[1], "x", 1) == 1);
    char byte;
    CHECK(read(ends[0], &byte, 1) == 1 && byte == 'x');
    CHECK(dup2(ends[0], 100) == 100);
    CHECK(getsockname(100, (void *)&own, &len) == -1 && errno == ENOTSOCK);
    CHECK(!close_range(101, 102, CLOSE_RANGE_CLOEXEC));
    transact(102);
    CHECK(!close_range(101, 102, 0));
    CHECK(getsockname(102, (void *)&own, &len) == -1 && errno == EBADF);
    transact(103);
    closefrom(103);
    CHECK(getsockname(103, (void *)&own, &len) == -1 && errno == EBADF);
    transact(all[0]);
    CHECK(dup2(all[0], -1) == -1 && errno == EBADF && close(-1) == -1 && errno == EBADF);
}

static void children(void) {
    int fd = bound(0), status;
    pid_t child = fork();
    if (!child) {
        transact(fd);
        int own = bound(0);
        CHECK(name_of(own).nl_pid == (uint32_t)getpid());
        close(fd);
        struct sockaddr_nl gone;
        socklen_t len = sizeof(gone);
        CHECK(getsockname(fd, (void *)&gone, &len) == -1 && errno == EBADF);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    transact(fd);
    // A child of vfork closes everything before it executes; the parent keeps its own.
    child = vfork();
    if (!child) {
        close(fd);
        close_range(3, ~0u, 0);
        execl("/bin/true", "true", NULL);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(name_of(fd).nl_pid == (uint32_t)getpid());
    transact(fd);
    // The environment goes through exec, and with it the library.
    CHECK(system("ip xfrm state count") == 0);
}

static void requests(void) {
    int fd = bound(0);
    struct ifreq name = {.ifr_name = "lo"};
    CHECK(!ioctl(fd, SIOCGIFINDEX, &name) && name.ifr_ifindex == 1);
    struct ethtool_drvinfo info = {.cmd = ETHTOOL_GDRVINFO};
    name.ifr_data = (void *)&info;
    CHECK(!ioctl(fd, SIOCETHTOOL, &name) || errno == EOPNOTSUPP);
}

static int cleaned;

static void clean(void *unused) {
    (void)unused;
    cleaned = 1;
}

static void *block(void *fd) {
    char buffer[64];
    pthread_cleanup_push(clean, NULL);
    recv(*(int *)fd, buffer, sizeof(buffer), 0);
    pthread_cleanup_pop(0);
    return NULL;
}

static void cancel(void) {
    int fd = bound(0);
    pthread_t thread;
    void *result;
    CHECK(!pthread_create(&thread, NULL, block, &fd));
    usleep(50000);
    CHECK(!pthread_cancel(thread) && !pthread_join(thread, &result));
    CHECK(result == PTHREAD_CANCELED && cleaned);
    transact(fd);
}

static void restart(void) {
    char buffer[64];
    int fd = bound(0x22);
    int on = 1, flags = fcntl(fd, F_GETFL);
    CHECK(!setsockopt(fd, SOL_NETLINK, NETLINK_CAP_ACK, &on, sizeof(on)));
    struct nlmsghdr h = request(HANG_UP, 0);
    CHECK(send(fd, &h, sizeof(h), 0) == sizeof(h));
    // The listener learns that something was lost, and goes on.
    CHECK(recv(fd, buffer, sizeof(buffer), 0) == -1 && errno == ENOBUFS);
    transact(fd);
    CHECK(fcntl(fd, F_GETFL) == flags && fcntl(fd, F_GETFD) == FD_CLOEXEC);
    h = request(HANG_UP, 0);
    CHECK(send(fd, &h, sizeof(h), 0) == sizeof(h));
    // Who only asks does not notice.
    transact(fd);
}

// A program that waits with epoll goes on waiting for the new connection.
static void watched(void) {
    char buffer[64];
    int fd = bound(0x22), set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0x1122334455667788};
    CHECK(set >= 0 && !epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    struct nlmsghdr h = request(HANG_UP, 0);
    CHECK(send(fd, &h, sizeof(h), 0) == sizeof(h));
    CHECK(epoll_wait(set, &event, 1, 10000) == 1 && event.data.u64 == 0x1122334455667788);
    CHECK(recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT) == -1 && errno == ENOBUFS);
    CHECK(epoll_wait(set, &event, 1, 0) == 0);
    h = request(GETSA, 0);
    CHECK(send(fd, &h, sizeof(h), 0) == sizeof(h));
    event.data.u64 = 0;
    CHECK(epoll_wait(set, &event, 1, 10000) == 1 && event.data.u64 == 0x1122334455667788);
    CHECK(answer(fd).nlmsg_type == NEWSA);
    CHECK(!epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    h = request(HANG_UP, 0);
    CHECK(send(fd, &h, sizeof(h), 0) == sizeof(h));
    transact(fd);
    CHECK(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL) == -1 && errno == ENOENT);
}

// The server hangs up instead of answering, once: the program gets its answer all the same.
static void asked_again(void) {
    int fd = opened(SOCK_RAW);
    struct nlmsghdr h = request(HANG_UP_ONCE, NLM_F_ACK);
    CHECK(send(fd, &h, sizeof(h), 0) == sizeof(h));
    CHECK(answer(fd).nlmsg_seq == h.nlmsg_seq);
}

// The server goes before it answers, and for longer than a request waits: the request fails.
static void away(void) {
    int fd = bound(0);
    struct nlmsghdr h = request(GO_AWAY, NLM_F_ACK);
    CHECK(send(fd, &h, sizeof(h), 0) == -1 && errno == ECONNREFUSED);
    // To who does not wait nothing has come, after a moment, until something was missed.
    char buffer[64];
    int turns = 0;
    while (recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT) == -1 && errno == EAGAIN)
        turns++;
    CHECK(errno == ENOBUFS && turns >= 1 && turns <= 20);
    transact(fd);
}

// The server has the request for longer than who is not answered waits, and then goes: it is asked again.
static void stalled(void) {
    int fd = bound(0);
    struct nlmsghdr h = request(STALL_ONCE, NLM_F_ACK);
    CHECK(send(fd, &h, sizeof(h), 0) == sizeof(h));
    CHECK(answer(fd).nlmsg_seq == h.nlmsg_seq);
}

// What the server said before it went can be read, and then that it went.
static void unread(void) {
    char buffer[64];
    int fd = bound(0);
    struct nlmsghdr first = request(DELSA, NLM_F_ACK);
    CHECK(send(fd, &first, sizeof(first), 0) == sizeof(first));
    struct nlmsghdr h = request(HANG_UP_ONCE, NLM_F_ACK);
    CHECK(send(fd, &h, sizeof(h), 0) == sizeof(h));
    CHECK(answer(fd).nlmsg_seq == first.nlmsg_seq);
    CHECK(recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT) == -1 && errno == ENOBUFS);
    transact(fd);
}

// Who asks on instead loses it, and is told so by the new connection, also who waits for that.
static void thrown_away(void) {
    char buffer[64];
    int fd = bound(0), set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    CHECK(set >= 0 && !epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    for (int peek = 0; peek < 2; peek++) {
        struct nlmsghdr h = request(DELSA, NLM_F_ACK);
        CHECK(send(fd, &h, sizeof(h), 0) == sizeof(h));
        h = request(HANG_UP, 0);
        CHECK(send(fd, &h, sizeof(h), 0) == sizeof(h));
        h = request(NEWSA, 0);
        CHECK(send(fd, &h, sizeof(h), 0) == sizeof(h));
        CHECK(epoll_wait(set, &event, 1, 10000) == 1);
        int flags = MSG_DONTWAIT | (peek ? MSG_PEEK : 0);
        CHECK(recv(fd, buffer, sizeof(buffer), flags) == -1 && errno == ENOBUFS);
        CHECK(recv(fd, buffer, sizeof(buffer), flags) == -1 && errno == EAGAIN);
        transact(fd);
    }
}

static void lose(void) {
    char buffer[64];
    int fd = bound(1);
    struct nlmsghdr h = request(LOSE, 0);
    CHECK(send(fd, &h, sizeof(h), 0) == sizeof(h));
    CHECK(recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT) == -1 && errno == ENOBUFS);
    CHECK(recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT) == -1 && errno == EAGAIN);
    CHECK(send(fd, &h, sizeof(h), 0) == sizeof(h));
    CHECK(recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT | MSG_PEEK) == -1 && errno == ENOBUFS);
    CHECK(recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT) == -1 && errno == EAGAIN);
}

// What is not XFRM is the kernel's.
static void others(void) {
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    CHECK(fd >= 0 && option_of(fd, SOL_SOCKET, SO_PROTOCOL) == NETLINK_ROUTE);
    struct {
        struct nlmsghdr h;
        struct rtgenmsg body;
    } dump = {{sizeof(dump), RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP, 1, 0}, {AF_UNSPEC}};
    CHECK(write(fd, &dump, sizeof(dump)) == sizeof(dump));
    char buffer[8192];
    CHECK(read(fd, buffer, sizeof(buffer)) > 0);
    CHECK(((struct nlmsghdr *)buffer)->nlmsg_type == RTM_NEWLINK);
    CHECK(socket(AF_NETLINK, SOCK_STREAM, NETLINK_XFRM) == -1 && errno == ESOCKTNOSUPPORT);
    CHECK(socket(-1, SOCK_RAW, NETLINK_XFRM) == -1 && errno == EAFNOSUPPORT);
}

static void *use(void *unused) {
    (void)unused;
    for (int i = 0; i < 50; i++) {
        int fd = opened(SOCK_RAW | SOCK_CLOEXEC);
        struct nlmsghdr h = {sizeof(h), GETSA, NLM_F_REQUEST, (uint32_t)i, 0};
        CHECK(send(fd, &h, sizeof(h), 0) == sizeof(h));
        CHECK(answer(fd).nlmsg_seq == (uint32_t)i);
        close(fd);
    }
    return NULL;
}

static void threads(void) {
    pthread_t all[8];
    for (int i = 0; i < 8; i++)
        CHECK(!pthread_create(&all[i], NULL, use, NULL));
    for (int i = 0; i < 8; i++)
        CHECK(!pthread_join(all[i], NULL));
}

// Several requests and several answers with one call each.
static void several(void) {
    int fd = bound(0);
    struct nlmsghdr h[3], back[4];
    struct iovec out[3], in[4];
    struct mmsghdr send[3] = {0}, receive[4] = {0};
    struct sockaddr_nl from[4];
    for (int i = 0; i < 3; i++) {
        h[i] = request(DELSA, NLM_F_ACK);
        out[i] = (struct iovec){&h[i], sizeof(h[i])};
        send[i].msg_hdr = (struct msghdr){.msg_iov = &out[i], .msg_iovlen = 1};
    }
    CHECK(sendmmsg(fd, send, 3, 0) == 3);
    CHECK(send[0].msg_len == sizeof(h[0]) && send[2].msg_len == sizeof(h[2]));
    for (int i = 0; i < 4; i++) {
        in[i] = (struct iovec){&back[i], sizeof(back[i])};
        receive[i].msg_hdr = (struct msghdr){.msg_name = &from[i],
                                             .msg_namelen = sizeof(from[i]),
                                             .msg_iov = &in[i],
                                             .msg_iovlen = 1};
    }
    // The first is waited for, the others are taken if they are there.
    errno = 0;
    CHECK(recvmmsg(fd, receive, 4, MSG_WAITFORONE, NULL) == 3 && errno == 0);
    for (int i = 0; i < 3; i++) {
        CHECK(back[i].nlmsg_seq == h[i].nlmsg_seq && back[i].nlmsg_type == NLMSG_ERROR);
        CHECK(receive[i].msg_hdr.msg_namelen == sizeof(from[i]) && from[i].nl_pid == 0);
    }
    CHECK(recvmmsg(fd, receive, 4, MSG_DONTWAIT, NULL) == -1 && errno == EAGAIN);
    CHECK(sendmmsg(fd, send, 0, 0) == 0 && recvmmsg(fd, receive, 0, 0, NULL) == 0);
    struct timespec now = {0, 0};
    CHECK(sendmmsg(fd, send, 2, 0) == 2 && recvmmsg(fd, receive, 4, 0, &now) == 1);
    CHECK(recvmmsg(fd, receive, 4, MSG_DONTWAIT, NULL) == 1);
    // Others' sockets go by.
    int pair[2];
    CHECK(!socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
    CHECK(sendmmsg(pair[0], send, 2, 0) == 2);
    CHECK(recvmmsg(pair[1], receive, 4, MSG_DONTWAIT, NULL) == 2);
}

// A connection that fork shares: whoever reads gets an answer, and the number says to what.
static void forked(void) {
    int fd = bound(0);
    transact(fd);
    int done[2];
    CHECK(!pipe(done));
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        struct nlmsghdr h = request(DELSA, NLM_F_ACK);
        h.nlmsg_seq = 7777;
        CHECK(send(fd, &h, sizeof(h), 0) == sizeof(h));
        CHECK(write(done[1], "x", 1) == 1);
        _exit(0);
    }
    char byte;
    CHECK(read(done[0], &byte, 1) == 1);
    struct nlmsghdr h = request(DELSA, NLM_F_ACK);
    CHECK(send(fd, &h, sizeof(h), 0) == sizeof(h));
    CHECK(answer(fd).nlmsg_seq == 7777);
    CHECK(answer(fd).nlmsg_seq == h.nlmsg_seq);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    transact(fd);
}

static uint32_t heard;

// Reads what comes on a socket on which others ask.
static void *hear(void *fd) {
    char buffer[4096];
    for (;;) {
        ssize_t got = recv(*(int *)fd, buffer, sizeof(buffer), 0);
        CHECK(got >= (ssize_t)sizeof(struct nlmsghdr) || (got == -1 && errno == ENOBUFS));
        if (got > 0)
            __atomic_store_n(&heard, ((struct nlmsghdr *)buffer)->nlmsg_seq, __ATOMIC_RELEASE);
    }
    return NULL;
}

static double now(void) {
    struct timespec time;
    CHECK(!clock_gettime(CLOCK_MONOTONIC, &time));
    return time.tv_sec + time.tv_nsec * 1e-9;
}

// Asks so many times, and has each answer heard by another thread.
static void ask_while_another_hears(uint16_t type, int times) {
    static int fd;
    fd = bound(0);
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, hear, &fd));
    for (int i = 0; i < times; i++) {
        struct nlmsghdr h = request(type, NLM_F_ACK);
        double began = now();
        CHECK(send(fd, &h, sizeof(h), 0) == sizeof(h));
        CHECK(now() - began < 1);
        while (__atomic_load_n(&heard, __ATOMIC_ACQUIRE) != h.nlmsg_seq) {
            CHECK(now() - began < 3);
            usleep(100);
        }
    }
}

// An answer that another thread has read is not waited for.
static void heard_elsewhere(void) {
    ask_while_another_hears(DELSA, 20);
}

// The server hangs up each time, which both threads see: the request is asked again, on one new connection.
static void both_see_the_end(void) {
    ask_while_another_hears(HANG_UP_ONCE, 60);
}

static int shared;

static void *ask_held(void *unused) {
    (void)unused;
    struct nlmsghdr h = {sizeof(h), HELD, NLM_F_REQUEST | NLM_F_ACK, 1, 0};
    CHECK(send(shared, &h, sizeof(h), 0) == sizeof(h));
    return NULL;
}

// Another thread's answer is not taken for one's own, whoever reads it: the server goes when it has given that.
static void not_ones_own(void) {
    pthread_t hearing, asking;
    shared = bound(0);
    CHECK(!pthread_create(&hearing, NULL, hear, &shared));
    for (int i = 0; i < 10; i++) {
        CHECK(!pthread_create(&asking, NULL, ask_held, NULL));
        usleep(1000 * i);
        struct nlmsghdr h = {sizeof(h), RELEASE_ONCE, NLM_F_REQUEST | NLM_F_ACK, 100 + i, 0};
        CHECK(send(shared, &h, sizeof(h), 0) == sizeof(h));
        double sent = now();
        while (__atomic_load_n(&heard, __ATOMIC_ACQUIRE) != h.nlmsg_seq) {
            CHECK(now() - sent < 3);
            usleep(100);
        }
        CHECK(!pthread_join(asking, NULL));
    }
}

// When a call that joins groups returns, the server knows: what older sockets cause next is heard.
static void joins(void) {
    int older = bound(0);
    for (int i = 0; i < 20; i++) {
        int fd = bound(1), group = 2;
        transact(older);
        CHECK(!setsockopt(fd, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &group, sizeof(group)));
        transact(older);
        close(fd);
    }
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*check)(void);
    } checks[] = {{"names", names},       {"options", options}, {"waits", waits},
                  {"sends", sends},       {"receives", receives}, {"copies", copies},
                  {"children", children}, {"requests", requests}, {"cancel", cancel},
                  {"restart", restart},   {"lose", lose},       {"others", others},
                  {"threads", threads},   {"several", several}, {"forked", forked},
                  {"watched", watched},   {"asked_again", asked_again},
                  {"away", away},         {"heard_elsewhere", heard_elsewhere},
                  {"both_see_the_end", both_see_the_end},
                  {"stalled", stalled},   {"unread", unread},
                  {"thrown_away", thrown_away}, {"not_ones_own", not_ones_own},
                  {"joins", joins}};
    for (int i = 1; i < argc; i++) {
        size_t at = 0;
        while (at < sizeof(checks) / sizeof(checks[0]) && strcmp(checks[at].name, argv[i]))
            at++;
        if (at == sizeof(checks) / sizeof(checks[0]))
            return 2;
        alarm(20);
        checks[at].check();
        printf("%s holds\n", argv[i]);
    }
    return 0;
}
