# BEET mode.
@set ID src 192.0.2.1 dst 192.0.2.2 proto esp
@set GCM aead rfc4106(gcm(aes)) 0x000102030405060708090a0b0c0d0e0f10111213 128
ip xfrm state add $ID spi 0x1000 mode beet $GCM
ip xfrm state add $ID spi 0x1001 mode beet sel src 10.0.0.1 dst 10.0.0.2 $GCM
ip xfrm state add $ID spi 0x1002 mode beet sel src 2001:db8::1 dst 2001:db8::2 $GCM
ip xfrm state list
