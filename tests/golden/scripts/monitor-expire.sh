# Soft and hard expiry of SAs, larval SAs and policies.
@set ID src 192.0.2.1 dst 192.0.2.2 proto esp
@set GCM aead rfc4106(gcm(aes)) 0x000102030405060708090a0b0c0d0e0f10111213 128
@set TMPL tmpl src 192.0.2.1 dst 192.0.2.2 proto esp reqid 1 mode tunnel
@monitor start
ip xfrm state add $ID spi 0xb000 mode tunnel reqid 1 limit time-soft 1 limit time-hard 3 $GCM
sleep 5
ip xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 dir out index 0x20001 limit time-soft 1 limit time-hard 3 $TMPL
sleep 5
@monitor stop
ip xfrm state list
ip xfrm policy list
