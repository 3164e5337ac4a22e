# UDP encapsulation as drafts of RFC 3948 had it, which newer kernels do not know any more.
@set ID src 192.0.2.1 dst 192.0.2.2 proto esp
@set GCM aead rfc4106(gcm(aes)) 0x000102030405060708090a0b0c0d0e0f10111213 128
ip xfrm state add $ID spi 0x1000 mode tunnel encap espinudp-nonike 500 500 0.0.0.0 $GCM
ip xfrm state list
