# AES-GCM in tunnel mode: every key size, both families, reqid, selectors.
ip xfrm state list
ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1000 mode tunnel aead 'rfc4106(gcm(aes))' 0x000102030405060708090a0b0c0d0e0f10111213 128
ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1001 mode tunnel aead 'rfc4106(gcm(aes))' 0x000102030405060708090a0b0c0d0e0f101112131415161718191a1b 128
ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1002 mode tunnel aead 'rfc4106(gcm(aes))' 0x000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20212223 128
ip xfrm state add src 2001:db8::1 dst 2001:db8::2 proto esp spi 0x1003 mode tunnel aead 'rfc4106(gcm(aes))' 0x000102030405060708090a0b0c0d0e0f10111213 128
ip xfrm state list
ip xfrm state list nokeys
ip xfrm state get src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1001
ip xfrm state get src 2001:db8::1 dst 2001:db8::2 proto esp spi 0x1003
ip -s xfrm state get src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1002
ip xfrm state count
@set ID src 192.0.2.1 dst 192.0.2.2 proto esp
@set GCM aead rfc4106(gcm(aes)) 0x000102030405060708090a0b0c0d0e0f10111213 128
# reqid, in both notations; the SPI in decimal.
ip xfrm state add $ID spi 0x1010 reqid 42 mode tunnel $GCM
ip xfrm state add $ID spi 4369 reqid 0x10000 mode tunnel $GCM
ip xfrm state get $ID spi 0x1010
ip xfrm state get $ID spi 0x1111
# Text keys.
ip xfrm state add $ID spi 0x1012 mode tunnel aead 'rfc4106(gcm(aes))' abcdefghijklmnopqrst 128
ip xfrm state get $ID spi 0x1012
# Selectors, which may be of the other family.
ip xfrm state add $ID spi 0x1020 mode tunnel sel src 10.1.0.0/16 dst 10.2.0.0/16 $GCM
ip xfrm state add $ID spi 0x1021 mode tunnel sel src 10.1.2.3 dst 10.2.0.0/33 proto tcp sport 1000 dport 80 $GCM
ip xfrm state add $ID spi 0x1022 mode tunnel sel src 10.1.2.3 dst 10.2.0.0/24 proto tcp sport 1000 dport 80 $GCM
ip xfrm state add $ID spi 0x1023 mode tunnel sel src 2001:db8:1::/48 dst 2001:db8:2::/48 $GCM
ip xfrm state add $ID spi 0x1024 mode tunnel sel proto icmp type 8 code 0 $GCM
ip xfrm state add $ID spi 0x1025 mode tunnel sel src 10.1.0.0/16 dst 10.2.0.0/16 dev lo $GCM
ip xfrm state add src 2001:db8::1 dst 2001:db8::2 proto esp spi 0x1026 mode tunnel sel src 10.1.0.0/16 dst 10.2.0.0/16 $GCM
ip xfrm state add src 2001:db8::1 dst 2001:db8::2 proto esp spi 0x1027 mode tunnel sel src 2001:db8:1::/48 dst 2001:db8:2::/48 $GCM
# Sources and destinations that are odd, but not refused.
ip xfrm state add src 0.0.0.0 dst 192.0.2.2 proto esp spi 0x1030 mode tunnel $GCM
ip xfrm state add src 192.0.2.1 dst 224.0.0.1 proto esp spi 0x1031 mode tunnel $GCM
ip xfrm state add dst 192.0.2.2 proto esp spi 0x1032 mode tunnel $GCM
ip xfrm state add src 192.0.2.1 proto esp spi 0x1033 mode tunnel $GCM
ip xfrm state add src 192.0.2.2 dst 192.0.2.2 proto esp spi 0x1034 mode tunnel $GCM
ip xfrm state add src 192.0.2.1 dst 2001:db8::2 proto esp spi 0x1035 mode tunnel $GCM
ip xfrm state list
ip xfrm state count
