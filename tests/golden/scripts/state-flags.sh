# Flags, extra flags, marks, interface identifiers and the like.
@set ID src 192.0.2.1 dst 192.0.2.2 proto esp
@set GCM aead rfc4106(gcm(aes)) 0x000102030405060708090a0b0c0d0e0f10111213 128
ip xfrm state add $ID spi 0x3000 mode tunnel flag noecn $GCM
ip xfrm state add $ID spi 0x3001 mode tunnel flag decap-dscp nopmtudisc wildrecv icmp af-unspec align4 $GCM
ip xfrm state add $ID spi 0x3002 mode tunnel flag af-unspec $GCM
ip xfrm state add $ID spi 0x3003 mode tunnel flag af-unspec sel src 10.1.0.0/16 dst 10.2.0.0/16 $GCM
ip xfrm state add $ID spi 0x3004 mode tunnel flag 0x40 $GCM
ip xfrm state add $ID spi 0x3005 mode tunnel extra-flag dont-encap-dscp $GCM
ip xfrm state add $ID spi 0x3006 mode tunnel extra-flag oseq-may-wrap $GCM
ip xfrm state add $ID spi 0x3007 mode tunnel extra-flag dont-encap-dscp oseq-may-wrap $GCM
ip xfrm state add $ID spi 0x3008 mode tunnel mark 0x10 $GCM
ip xfrm state add $ID spi 0x3009 mode tunnel mark 0x10 mask 0xff $GCM
ip xfrm state add $ID spi 0x300a mode tunnel mark 0x10 mask 0x0f $GCM
ip xfrm state add $ID spi 0x300b mode tunnel output-mark 0x20 $GCM
ip xfrm state add $ID spi 0x300c mode tunnel output-mark 0x20 mask 0xff $GCM
ip xfrm state add $ID spi 0x300d mode tunnel if_id 0x30 $GCM
ip xfrm state add $ID spi 0x300e mode tunnel if_id 0 $GCM
ip xfrm state add $ID spi 0x3010 mode tunnel seq 0x77 $GCM
ip xfrm state add $ID spi 0x3011 mode tunnel coa 192.0.2.9 $GCM
ip xfrm state add $ID spi 0x3012 mode tunnel mark 1 mask 3 if_id 4 output-mark 5 mask 6 extra-flag dont-encap-dscp replay-window 64 flag esn reqid 8 seq 9 $GCM
ip xfrm state add $ID spi 0x3013 mode tunnel extra-flag 0x4 $GCM
ip xfrm state list
ip -s xfrm state list
ip xfrm state list flag esn
ip xfrm state list flag noecn
# An SA with a mark is found only with that mark.
ip xfrm state get $ID spi 0x3009
ip xfrm state get $ID spi 0x3009 mark 0x10
ip xfrm state get $ID spi 0x3009 mark 0x10 mask 0xff
ip xfrm state get $ID spi 0x3009 mark 0x110 mask 0xff
ip xfrm state get $ID spi 0x3009 mark 0x11 mask 0xff
ip xfrm state get $ID spi 0x3009 mark 0x10 mask 0xffffffff
ip xfrm state get $ID spi 0x3000 mark 0x10
ip xfrm state delete $ID spi 0x3009
ip xfrm state delete $ID spi 0x3009 mark 0x10 mask 0xff
ip xfrm state get $ID spi 0x300d
ip xfrm state delete $ID spi 0x300d
# The same triple with other marks or interface identifiers.
ip xfrm state add $ID spi 0x3020 mode tunnel mark 1 $GCM
ip xfrm state add $ID spi 0x3020 mode tunnel mark 2 $GCM
ip xfrm state add $ID spi 0x3020 mode tunnel mark 2 $GCM
ip xfrm state add $ID spi 0x3020 mode tunnel $GCM
ip xfrm state add $ID spi 0x3021 mode tunnel if_id 1 $GCM
ip xfrm state add $ID spi 0x3021 mode tunnel if_id 2 $GCM
ip xfrm state count
