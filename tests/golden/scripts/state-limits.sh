# Lifetimes. The kernel reports a limit of zero as given and none at all as infinite.
@set ID src 192.0.2.1 dst 192.0.2.2 proto esp
@set GCM aead rfc4106(gcm(aes)) 0x000102030405060708090a0b0c0d0e0f10111213 128
ip xfrm state add $ID spi 0x4000 mode tunnel limit time-soft 1000 limit time-hard 2000 $GCM
ip xfrm state add $ID spi 0x4001 mode tunnel limit time-use-soft 1000 limit time-use-hard 2000 $GCM
ip xfrm state add $ID spi 0x4002 mode tunnel limit byte-soft 1000000 limit byte-hard 2000000 $GCM
ip xfrm state add $ID spi 0x4003 mode tunnel limit packet-soft 1000 limit packet-hard 2000 $GCM
ip xfrm state add $ID spi 0x4004 mode tunnel limit byte-soft 1k limit byte-hard 18446744073709551615 $GCM
ip xfrm state add $ID spi 0x4005 mode tunnel limit packet-soft 0 limit packet-hard 0 limit byte-soft 0 limit byte-hard 0 $GCM
ip xfrm state add $ID spi 0x4006 mode tunnel limit time-hard 4294967296 $GCM
ip xfrm state add $ID spi 0x4007 mode tunnel limit packet-hard 18446744073709551614 limit byte-hard 18446744073709551614 $GCM
ip xfrm state add $ID spi 0x4008 mode tunnel limit time-hard 0 limit time-soft 100 $GCM
ip xfrm state add $ID spi 0x4009 mode tunnel limit time-hard 100 limit time-soft 200 $GCM
ip xfrm state add $ID spi 0x400a mode tunnel $GCM
ip -s xfrm state list
ip -s -s xfrm state list
ip xfrm state list
# A hard time limit removes the SA.
ip xfrm state flush
ip xfrm state add $ID spi 0x4010 mode tunnel limit time-soft 1 limit time-hard 2 $GCM
ip xfrm state add $ID spi 0x4011 mode tunnel limit time-soft 1 limit time-hard 1000 $GCM
ip xfrm state count
sleep 4
ip xfrm state count
ip -s xfrm state list
