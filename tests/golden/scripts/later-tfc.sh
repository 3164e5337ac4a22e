# Padding against traffic analysis (TFC).
@set ID src 192.0.2.1 dst 192.0.2.2 proto esp
@set GCM aead rfc4106(gcm(aes)) 0x000102030405060708090a0b0c0d0e0f10111213 128
ip xfrm state add $ID spi 0x1000 mode tunnel tfcpad 256 $GCM
ip xfrm state add $ID spi 0x1001 mode tunnel if_id 4 tfcpad 7 extra-flag dont-encap-dscp replay-window 64 flag esn $GCM
ip xfrm state list
ip xfrm state update $ID spi 0x1000 mode tunnel tfcpad 9 $GCM
ip xfrm state get $ID spi 0x1000
