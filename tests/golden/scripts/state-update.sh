# Updates, duplicates, deletion and flushing.
@set ID src 192.0.2.1 dst 192.0.2.2 proto esp
@set GCM aead rfc4106(gcm(aes)) 0x000102030405060708090a0b0c0d0e0f10111213 128
@set NEW aead rfc4106(gcm(aes)) 0x202122232425262728292a2b2c2d2e2f30313233 128
ip xfrm state update $ID spi 0x6000 mode tunnel $GCM
ip xfrm state add $ID spi 0x6000 mode tunnel reqid 1 $GCM
ip xfrm state add $ID spi 0x6000 mode tunnel reqid 1 $GCM
ip xfrm state add src 192.0.2.9 dst 192.0.2.2 proto esp spi 0x6000 mode tunnel reqid 1 $GCM
ip xfrm state add src 192.0.2.1 dst 192.0.2.3 proto esp spi 0x6000 mode tunnel reqid 1 $GCM
ip xfrm state list
# An update of an installed SA changes lifetimes and little else.
ip xfrm state update $ID spi 0x6000 mode tunnel reqid 2 $NEW
ip xfrm state get $ID spi 0x6000
ip xfrm state update $ID spi 0x6000 mode tunnel reqid 1 limit packet-hard 1000 limit byte-soft 5000 $NEW
ip -s xfrm state get $ID spi 0x6000
ip xfrm state update $ID spi 0x6000 mode tunnel reqid 1 sel src 10.0.0.0/8 dst 10.0.0.0/8 $GCM
ip xfrm state get $ID spi 0x6000
ip xfrm state update $ID spi 0x6000 mode tunnel reqid 1 flag esn replay-window 64 $GCM
ip xfrm state get $ID spi 0x6000
ip xfrm state update $ID spi 0x6000 mode tunnel reqid 1 if_id 5 output-mark 6 extra-flag dont-encap-dscp $GCM
ip xfrm state get $ID spi 0x6000
ip xfrm state update $ID spi 0x6000 mode transport reqid 1 $GCM
ip xfrm state get $ID spi 0x6000
ip xfrm state update src 192.0.2.9 dst 192.0.2.2 proto esp spi 0x6000 mode tunnel reqid 1 $GCM
ip xfrm state update $ID spi 0x6000 mode tunnel
ip xfrm state update $ID spi 0x6001 mode tunnel $GCM
# Deletion.
ip xfrm state delete src 192.0.2.9 dst 192.0.2.2 proto esp spi 0x6000
ip xfrm state delete $ID spi 0x6000
ip xfrm state delete $ID spi 0x6000
ip xfrm state delete dst 192.0.2.2 proto esp spi 0x6000
ip xfrm state delete dst 192.0.2.3 proto esp spi 0x6000
ip xfrm state get $ID spi 0x6000
ip xfrm state get dst 192.0.2.2 proto esp spi 0x6000
ip xfrm state delete $ID
ip xfrm state delete
ip xfrm state get
ip xfrm state list
# Flushing.
ip xfrm state flush
ip xfrm state add $ID spi 0x6002 mode tunnel $GCM
ip xfrm state flush proto ah
ip xfrm state count
ip xfrm state flush proto esp
ip xfrm state count
ip xfrm state flush
ip xfrm state flush proto esp
ip xfrm state flush proto 6
ip xfrm state flush proto bogus
ip xfrm state add $ID spi 0x6000 mode tunnel reqid 1 $GCM
ip xfrm state list
