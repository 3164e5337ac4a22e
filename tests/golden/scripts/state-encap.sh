# UDP encapsulation.
@set ID src 192.0.2.1 dst 192.0.2.2 proto esp
@set GCM aead rfc4106(gcm(aes)) 0x000102030405060708090a0b0c0d0e0f10111213 128
ip xfrm state add $ID spi 0x1000 mode tunnel encap espinudp 4500 4500 0.0.0.0 $GCM
ip xfrm state add $ID spi 0x1001 mode tunnel encap espinudp 4500 12345 198.51.100.1 $GCM
ip xfrm state add $ID spi 0x1002 mode transport encap espinudp 500 500 0.0.0.0 $GCM
ip xfrm state add $ID spi 0x1003 mode tunnel encap espintcp 4500 4500 0.0.0.0 $GCM
ip xfrm state add $ID spi 0x1004 mode tunnel encap bogus 4500 4500 0.0.0.0 $GCM
ip xfrm state add $ID spi 0x1005 mode tunnel encap 7 4500 4500 0.0.0.0 $GCM
ip xfrm state add $ID spi 0x1006 mode tunnel encap espinudp 70000 4500 0.0.0.0 $GCM
ip xfrm state add src 2001:db8::1 dst 2001:db8::2 proto esp spi 0x1007 mode tunnel encap espinudp 4500 4500 :: $GCM
ip xfrm state add $ID spi 0x1008 mode tunnel encap espinudp 0 4500 0.0.0.0 $GCM
ip xfrm state add $ID spi 0x1009 mode tunnel $GCM
ip xfrm state list
# The ports of an SA in use may change; UDP comes and goes with the SA only.
ip xfrm state update $ID spi 0x1000 mode tunnel encap espinudp 4501 4502 0.0.0.0 $GCM
ip xfrm state get $ID spi 0x1000
ip xfrm state update $ID spi 0x1000 mode tunnel $GCM
ip xfrm state update $ID spi 0x1009 mode tunnel encap espinudp 4500 4500 0.0.0.0 $GCM
ip xfrm state get $ID spi 0x1009
# An SPI is reserved first.
ip xfrm state allocspi src 192.0.2.1 dst 192.0.2.2 proto esp mode tunnel min 0x2000 max 0x2000
ip xfrm state update $ID spi 0x2000 mode tunnel encap espinudp 4500 1024 0.0.0.0 $GCM
ip xfrm state get $ID spi 0x2000
# Events show the ports, that of a deletion as well.
@monitor start
ip xfrm state add $ID spi 0x3000 mode tunnel encap espinudp 4500 4500 0.0.0.0 $GCM
ip xfrm state update $ID spi 0x3000 mode tunnel encap espinudp 4500 4600 0.0.0.0 $GCM
ip xfrm state delete $ID spi 0x3000
@monitor stop
