/*
 * The AES-GCM part of libipsec-mb behind six plain functions.
 *
 * It is C because the library's structs (the manager's function table above all) change between
 * releases: compiled against the installed header it is right for 1.x and 2.x alike, where a layout
 * written down in Rust would be silent memory corruption. Nothing is decided here: lengths, tag
 * comparison and wiping are the caller's (ipsec_mb.rs).
 */
#include <stddef.h>
#include <stdint.h>

#include <intel-ipsec-mb.h>

#define TAG_LEN 16

const size_t peregrine_mb_key_len = sizeof(struct gcm_key_data);

static const char *architecture_name(IMB_ARCH arch)
{
    switch (arch) {
    case IMB_ARCH_SSE:
        return "sse";
#if IMB_VERSION_NUM < IMB_VERSION(2, 0, 0)
    case IMB_ARCH_AVX:
        return "avx";
    case IMB_ARCH_NOAESNI: /* table-driven AES emulation: slow, and not constant time */
        return NULL;
#endif
    case IMB_ARCH_AVX2:
        return "avx2";
    case IMB_ARCH_AVX512:
        return "avx512";
    case IMB_ARCH_NONE:
        return NULL;
    default: /* a newer library's newer instruction set */
        return "newer than avx512";
    }
}

/*
 * A manager set up for this CPU, never freed; `architecture` is the instruction set it took.
 * Returns NULL on failure, with the reason in `error` (a static string).
 */
const void *peregrine_mb_new(const char **architecture, const char **error)
{
    if (imb_get_version() >> 16 != IMB_VERSION_NUM >> 16) {
        *error = "the libipsec-mb found at run time has another major version than the header "
                 "Peregrine was built with (" IMB_VERSION_STR ")";
        return NULL;
    }
    IMB_MGR *manager = alloc_mb_mgr(0);
    if (manager == NULL) {
        *error = "libipsec-mb could not allocate its manager";
        return NULL;
    }
    IMB_ARCH arch = IMB_ARCH_NONE;
    init_mb_mgr_auto(manager, &arch); /* runs the library's own known-answer tests too */
    const int code = imb_get_errno(manager);
    *architecture = architecture_name(arch);
    if (code != 0)
        *error = imb_get_strerror(code);
    else if (*architecture == NULL)
        *error = "this CPU has no AES instructions";
    else
        return manager;
    free_mb_mgr(manager);
    return NULL;
}

const char *peregrine_mb_version(void)
{
    return imb_get_version_str();
}

/* Expands a key of 16, 24 or 32 bytes into `expanded`, peregrine_mb_key_len bytes aligned to 64. */
void peregrine_mb_expand(const void *manager, const uint8_t *key, size_t key_len, void *expanded)
{
    const IMB_MGR *m = manager;

    switch (key_len) {
    case 16:
        IMB_AES128_GCM_PRE(m, key, expanded);
        break;
    case 24:
        IMB_AES192_GCM_PRE(m, key, expanded);
        break;
    default:
        IMB_AES256_GCM_PRE(m, key, expanded);
        break;
    }
}

/* Encrypts `data` in place and writes the 16-byte tag. */
void peregrine_mb_seal(const void *manager, const void *expanded, size_t key_len,
                       const uint8_t *nonce, const uint8_t *aad, size_t aad_len, uint8_t *data,
                       size_t data_len, uint8_t *tag)
{
    const IMB_MGR *m = manager;
    struct gcm_context_data c;

    switch (key_len) {
    case 16:
        IMB_AES128_GCM_ENC(m, expanded, &c, data, data, data_len, nonce, aad, aad_len, tag,
                           TAG_LEN);
        break;
    case 24:
        IMB_AES192_GCM_ENC(m, expanded, &c, data, data, data_len, nonce, aad, aad_len, tag,
                           TAG_LEN);
        break;
    default:
        IMB_AES256_GCM_ENC(m, expanded, &c, data, data, data_len, nonce, aad, aad_len, tag,
                           TAG_LEN);
        break;
    }
}

/* Decrypts `data` in place, unverified, and writes the tag the data should have had. */
void peregrine_mb_decrypt(const void *manager, const void *expanded, size_t key_len,
                          const uint8_t *nonce, const uint8_t *aad, size_t aad_len, uint8_t *data,
                          size_t data_len, uint8_t *tag)
{
    const IMB_MGR *m = manager;
    struct gcm_context_data c;

    switch (key_len) {
    case 16:
        IMB_AES128_GCM_DEC(m, expanded, &c, data, data, data_len, nonce, aad, aad_len, tag,
                           TAG_LEN);
        break;
    case 24:
        IMB_AES192_GCM_DEC(m, expanded, &c, data, data, data_len, nonce, aad, aad_len, tag,
                           TAG_LEN);
        break;
    default:
        IMB_AES256_GCM_DEC(m, expanded, &c, data, data, data_len, nonce, aad, aad_len, tag,
                           TAG_LEN);
        break;
    }
}
