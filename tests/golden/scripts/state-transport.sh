# Transport mode.
@set ID src 192.0.2.1 dst 192.0.2.2 proto esp
@set GCM aead rfc4106(gcm(aes)) 0x000102030405060708090a0b0c0d0e0f10111213 128
ip xfrm state add $ID spi 0x1000 mode transport $GCM
ip xfrm state add $ID spi 0x1001 $GCM
ip xfrm state add $ID spi 0x1002 mode transport sel src 2001:db8::1 dst 2001:db8::2 $GCM
ip xfrm state add src 2001:db8::1 dst 2001:db8::2 proto esp spi 0x1003 mode transport flag esn replay-window 64 $GCM
ip xfrm state add $ID spi 0x1004 mode transport flag af-unspec $GCM
ip xfrm state add $ID spi 0x1005 mode transport extra-flag dont-encap-dscp $GCM
ip xfrm state add $ID spi 0x1006 mode transport tfcpad 100 $GCM
ip xfrm state list
ip xfrm state list mode transport
ip xfrm policy add src 192.0.2.1 dst 192.0.2.2 dir out tmpl proto esp mode transport
ip xfrm policy add src 192.0.2.1 dst 192.0.2.2 dir in tmpl src 192.0.2.1 dst 192.0.2.2 proto esp mode transport level use
ip xfrm policy list
