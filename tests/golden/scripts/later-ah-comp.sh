# AH and IPComp.
@set K20 0x000102030405060708090a0b0c0d0e0f10111213
ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto ah spi 0x1000 mode tunnel auth 'hmac(sha1)' $K20
ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto ah spi 0x1001 mode transport auth-trunc 'hmac(sha256)' $K20 128
ip xfrm state add src 2001:db8::1 dst 2001:db8::2 proto ah spi 0x1002 mode transport auth 'hmac(sha1)' $K20
ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto ah spi 0x1003 mode tunnel enc 'cbc(aes)' 0x000102030405060708090a0b0c0d0e0f
ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto ah spi 0x1004 mode tunnel
ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto ah spi 0x1005 mode tunnel aead 'rfc4106(gcm(aes))' $K20 128
ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto comp spi 0x1000 mode tunnel comp deflate
ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto comp spi 0x10000 mode tunnel comp deflate
ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto comp spi 0x2000 mode transport comp deflate
ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto comp spi 0x2001 mode tunnel
ip xfrm state allocspi src 192.0.2.1 dst 192.0.2.2 proto comp mode tunnel min 0x3000 max 0x3000
ip xfrm state allocspi src 192.0.2.1 dst 192.0.2.2 proto comp mode tunnel min 0x10000 max 0x10001
ip xfrm state allocspi src 192.0.2.1 dst 192.0.2.2 proto ah mode tunnel min 0x3000 max 0x3000
ip xfrm state list
ip xfrm state flush proto ah
ip xfrm state flush proto comp
ip xfrm state list
