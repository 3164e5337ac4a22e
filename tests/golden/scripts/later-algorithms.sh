# ESP with the other algorithms.
@set ID src 192.0.2.1 dst 192.0.2.2 proto esp
@set K16 0x000102030405060708090a0b0c0d0e0f
@set K19 0x000102030405060708090a0b0c0d0e0f101112
@set K20 0x000102030405060708090a0b0c0d0e0f10111213
@set K32 0x000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f
@set K36 0x000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20212223
ip xfrm state add $ID spi 0x1000 mode tunnel enc 'cbc(aes)' $K16 auth 'hmac(sha1)' $K20
ip xfrm state add $ID spi 0x1001 mode tunnel enc 'cbc(aes)' $K32 auth-trunc 'hmac(sha256)' $K32 128
ip xfrm state add $ID spi 0x1002 mode tunnel enc 'cbc(aes)' $K32 auth 'hmac(sha256)' $K32
ip xfrm state add $ID spi 0x1003 mode tunnel enc 'cbc(aes)' $K32 auth-trunc 'hmac(sha256)' $K32 96
ip xfrm state add $ID spi 0x1004 mode tunnel enc 'cbc(aes)' $K32 auth-trunc 'hmac(sha512)' $K32 256
ip xfrm state add $ID spi 0x1005 mode tunnel enc aes $K16 auth sha1 $K20
ip xfrm state add $ID spi 0x1006 mode tunnel enc 'rfc3686(ctr(aes))' $K20 auth 'hmac(sha1)' $K20
ip xfrm state add $ID spi 0x1007 mode tunnel enc 'ecb(cipher_null)' '' auth 'hmac(sha1)' $K20
ip xfrm state add $ID spi 0x1008 mode tunnel enc 'cbc(des3_ede)' 0x000102030405060708090a0b0c0d0e0f1011121314151617 auth 'hmac(md5)' $K16
ip xfrm state add $ID spi 0x1009 mode tunnel enc 'cbc(aes)' $K16
ip xfrm state add $ID spi 0x100a mode tunnel auth 'hmac(sha1)' $K20
ip xfrm state add $ID spi 0x100b mode tunnel enc 'cbc(aes)' $K20 auth 'hmac(sha1)' $K20
ip xfrm state add $ID spi 0x100c mode tunnel enc 'cbc(aes)' $K16 auth-trunc 'hmac(sha1)' $K20 1024
ip xfrm state add $ID spi 0x100d mode tunnel enc 'cbc(aes)' $K16 auth 'xcbc(aes)' $K16
ip xfrm state add $ID spi 0x100e mode tunnel enc 'cbc(aes)' $K16 auth-trunc 'cmac(aes)' $K16 96
ip xfrm state add $ID spi 0x1010 mode tunnel aead 'rfc4106(gcm(aes))' $K20 64
ip xfrm state add $ID spi 0x1011 mode tunnel aead 'rfc4106(gcm(aes))' $K20 96
ip xfrm state add $ID spi 0x1012 mode tunnel aead 'rfc4309(ccm(aes))' $K19 128
ip xfrm state add $ID spi 0x1013 mode tunnel aead 'rfc7539esp(chacha20,poly1305)' $K36 128
ip xfrm state add $ID spi 0x1014 mode tunnel aead 'rfc4543(gcm(aes))' $K20 128
ip xfrm state add $ID spi 0x1015 mode tunnel aead 'rfc7539esp(chacha20,poly1305)' $K32 128
ip xfrm state add $ID spi 0x1016 mode tunnel aead 'rfc7539esp(chacha20,poly1305)' $K36 96
ip xfrm state list
ip xfrm state count
