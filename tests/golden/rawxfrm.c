// Sends hand-made datagrams to the kernel's XFRM netlink socket and describes what comes back.
//
// It exists for the messages that no well-behaved program sends: truncated headers, wrong lengths,
// unknown types. Statically linked it runs in the recorder's guest, dynamically linked under the
// preload library. It checks nothing about XFRM and decodes no attribute beyond type and length.
//
// usage: rawxfrm [-c] [-e] [-g GROUPS] WORD... [+ WORD...]...
//   -c, -e      set NETLINK_CAP_ACK, NETLINK_EXT_ACK
//   -g GROUPS   bind to this group mask
//   -x          print the bytes of replies that are not errors, too
//   WORD        hex bytes, as they lie in memory; 00*24 repeats; LEN is the datagram's length, u32
//   +           starts the next datagram; all replies are read before it is sent
#include <errno.h>
#include <linux/netlink.h>
#include <linux/xfrm.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define DATAGRAM_MAX 65536
// Netlink answers before send() returns; this only has to outlast a slow emulated machine's noise.
#define SILENCE_MS 100

// Size of the fixed structure in front of the attributes of the messages that replies consist of.
static size_t fixed_size(uint16_t type) {
    switch (type) {
    case XFRM_MSG_NEWSA:
    case XFRM_MSG_UPDSA:
        return sizeof(struct xfrm_usersa_info);
    case XFRM_MSG_DELSA:
        return sizeof(struct xfrm_usersa_id);
    case XFRM_MSG_NEWPOLICY:
    case XFRM_MSG_UPDPOLICY:
        return sizeof(struct xfrm_userpolicy_info);
    case XFRM_MSG_DELPOLICY:
        return sizeof(struct xfrm_userpolicy_id);
    case XFRM_MSG_EXPIRE:
        return sizeof(struct xfrm_user_expire);
    case XFRM_MSG_POLEXPIRE:
        return sizeof(struct xfrm_user_polexpire);
    case XFRM_MSG_ACQUIRE:
        return sizeof(struct xfrm_user_acquire);
    case XFRM_MSG_NEWAE:
        return sizeof(struct xfrm_aevent_id);
    case XFRM_MSG_FLUSHSA:
        return sizeof(struct xfrm_usersa_flush);
    case XFRM_MSG_NEWSADINFO:
    case XFRM_MSG_NEWSPDINFO:
        return sizeof(uint32_t);
    case XFRM_MSG_GETDEFAULT:
    case XFRM_MSG_SETDEFAULT:
        return sizeof(struct xfrm_userpolicy_default);
    default:
        return 0;
    }
}

static int print_hex;

static void die(const char *what) {
    fprintf(stderr, "rawxfrm: %s: %s\n", what, strerror(errno));
    exit(1);
}

static size_t append_word(uint8_t *out, size_t used, const char *word) {
    unsigned repeat = 1;
    size_t digits = strcspn(word, "*");
    if (word[digits] == '*')
        repeat = (unsigned)atoi(word + digits + 1);
    if (digits % 2 || used + digits / 2 * repeat > DATAGRAM_MAX) {
        fprintf(stderr, "rawxfrm: bad word %s\n", word);
        exit(1);
    }
    while (repeat--)
        for (size_t i = 0; i < digits; i += 2) {
            unsigned byte;
            if (sscanf(word + i, "%2x", &byte) != 1) {
                fprintf(stderr, "rawxfrm: bad word %s\n", word);
                exit(1);
            }
            out[used++] = (uint8_t)byte;
        }
    return used;
}

static void describe_attributes(const uint8_t *at, size_t left) {
    while (left >= sizeof(struct nlattr)) {
        const struct nlattr *a = (const void *)at;
        if (a->nla_len < sizeof(*a) || a->nla_len > left)
            break;
        printf(" %u:%u", a->nla_type, a->nla_len);
        size_t step = NLA_ALIGN(a->nla_len);
        step = step > left ? left : step;
        at += step;
        left -= step;
    }
    if (left)
        printf(" trailing:%zu", left);
}

static void describe_error(const struct nlmsghdr *h) {
    const struct nlmsgerr *e = NLMSG_DATA(h);
    printf(" error=%s", e->error ? strerror(-e->error) : "0");
    printf(" of type=%#x flags=%#x seq=%u len=%u", e->msg.nlmsg_type, e->msg.nlmsg_flags,
           e->msg.nlmsg_seq, e->msg.nlmsg_len);
    if (!(h->nlmsg_flags & NLM_F_ACK_TLVS))
        return;
    size_t skip = sizeof(*e);
    if (!(h->nlmsg_flags & NLM_F_CAPPED))
        skip += e->msg.nlmsg_len - sizeof(struct nlmsghdr);
    for (skip = NLMSG_ALIGN(skip); skip + 4 <= h->nlmsg_len - sizeof(*h);) {
        const struct nlattr *a = (const void *)((const uint8_t *)e + skip);
        if (a->nla_len < 4)
            break;
        if (a->nla_type == NLMSGERR_ATTR_MSG)
            printf(" message=\"%s\"", (const char *)a + 4);
        else
            printf(" tlv=%u:%u", a->nla_type, a->nla_len);
        skip += NLA_ALIGN(a->nla_len);
    }
}

static void describe(const struct nlmsghdr *h, uint32_t own_pid) {
    printf("  type=%#x flags=%#x seq=%u pid=%s len=%u", h->nlmsg_type, h->nlmsg_flags, h->nlmsg_seq,
           h->nlmsg_pid == own_pid ? "own" : h->nlmsg_pid ? "other" : "0", h->nlmsg_len);
    const uint8_t *body = NLMSG_DATA(h);
    size_t body_len = h->nlmsg_len - sizeof(*h);
    if (h->nlmsg_type == NLMSG_ERROR) {
        describe_error(h);
    } else if (fixed_size(h->nlmsg_type) && body_len >= fixed_size(h->nlmsg_type)) {
        size_t fixed = NLMSG_ALIGN(fixed_size(h->nlmsg_type));
        printf(" attributes");
        describe_attributes(body + fixed, body_len - fixed);
    }
    printf("\n");
    if (print_hex && h->nlmsg_type != NLMSG_ERROR) {
        for (size_t i = 0; i < body_len; i++)
            printf("%s%02x%s", i % 32 ? i % 4 ? "" : " " : "    ", body[i],
                   i % 32 == 31 || i + 1 == body_len ? "\n" : "");
    }
}

static void read_replies(int fd, uint32_t own_pid) {
    static uint8_t buffer[DATAGRAM_MAX];
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    int replies = 0;
    while (poll(&ready, 1, SILENCE_MS) > 0) {
        struct sockaddr_nl from = {0};
        socklen_t from_len = sizeof(from);
        ssize_t got = recvfrom(fd, buffer, sizeof(buffer), 0, (void *)&from, &from_len);
        if (got < 0)
            die("recvfrom");
        printf("< %zd bytes from family=%u pid=%u groups=%#x\n", got, from.nl_family, from.nl_pid,
               from.nl_groups);
        int left = (int)got;
        for (struct nlmsghdr *h = (void *)buffer; NLMSG_OK(h, left); h = NLMSG_NEXT(h, left))
            describe(h, own_pid);
        replies++;
    }
    if (!replies)
        printf("< nothing\n");
}

static void exchange(int fd, uint32_t own_pid, char **words, int count) {
    static uint8_t out[DATAGRAM_MAX];
    size_t used = 0;
    long len_at = -1;
    for (int i = 0; i < count; i++) {
        if (!strcmp(words[i], "LEN")) {
            len_at = (long)used;
            used = append_word(out, used, "00000000");
        } else {
            used = append_word(out, used, words[i]);
        }
    }
    if (len_at >= 0) {
        uint32_t total = (uint32_t)used;
        memcpy(out + len_at, &total, sizeof(total));
    }
    struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    printf("> %zu bytes\n", used);
    if (sendto(fd, out, used, 0, (void *)&kernel, sizeof(kernel)) < 0)
        printf("  sendto: %s\n", strerror(errno));
    read_replies(fd, own_pid);
}

int main(int argc, char **argv) {
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_XFRM);
    if (fd < 0)
        die("socket");
    struct sockaddr_nl own = {.nl_family = AF_NETLINK};
    int on = 1, option;
    while ((option = getopt(argc, argv, "+ceg:x")) != -1) {
        if (option == 'g')
            own.nl_groups = (uint32_t)strtoul(optarg, NULL, 0);
        else if (option == 'x')
            print_hex = 1;
        else if (option == 'c' || option == 'e') {
            int name = option == 'c' ? NETLINK_CAP_ACK : NETLINK_EXT_ACK;
            if (setsockopt(fd, SOL_NETLINK, name, &on, sizeof(on)))
                die("setsockopt");
        } else
            return 1;
    }
    socklen_t own_len = sizeof(own);
    if (bind(fd, (void *)&own, sizeof(own)))
        die("bind");
    if (getsockname(fd, (void *)&own, &own_len) || own_len != sizeof(own))
        die("getsockname");
    for (int first = optind, i = optind; i <= argc; i++)
        if (i == argc || !strcmp(argv[i], "+")) {
            exchange(fd, own.nl_pid, argv + first, i - first);
            first = i + 1;
        }
    return 0;
}
