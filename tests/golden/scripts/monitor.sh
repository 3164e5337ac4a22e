# What the monitor prints while SAs and policies come and go.
@set ID src 192.0.2.1 dst 192.0.2.2 proto esp
@set GCM aead rfc4106(gcm(aes)) 0x000102030405060708090a0b0c0d0e0f10111213 128
@set TMPL tmpl src 192.0.2.1 dst 192.0.2.2 proto esp reqid 1 mode tunnel
@monitor start
ip xfrm state add $ID spi 0xa000 mode tunnel reqid 1 $GCM
ip xfrm state add $ID spi 0xa000 mode tunnel reqid 1 $GCM
ip xfrm state update $ID spi 0xa000 mode tunnel reqid 1 limit packet-hard 100 $GCM
ip xfrm state add $ID spi 0xa001 mode tunnel reqid 1 flag esn replay-window 128 $GCM
ip xfrm state delete $ID spi 0xa000
ip xfrm state delete $ID spi 0xa000
ip xfrm state allocspi $ID mode tunnel reqid 2 min 0xa002 max 0xa002
ip xfrm state update $ID spi 0xa002 mode tunnel reqid 2 $GCM
ip xfrm state flush
ip xfrm state flush
ip xfrm state flush proto esp
ip xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 dir out $TMPL
ip xfrm policy update src 10.1.0.0/16 dst 10.2.0.0/16 dir out priority 3 $TMPL
ip xfrm policy add src 10.2.0.0/16 dst 10.1.0.0/16 dir in index 0x20000 $TMPL
ip xfrm policy get src 10.1.0.0/16 dst 10.2.0.0/16 dir out
ip xfrm policy delete src 10.1.0.0/16 dst 10.2.0.0/16 dir out
ip xfrm policy delete index 0x20000 dir in
ip xfrm policy flush
ip xfrm policy add src 10.3.0.0/16 dst 10.2.0.0/16 dir out action block
ip xfrm policy flush
ip xfrm policy setdefault in block
ip xfrm policy setdefault in accept
ip xfrm policy set hthresh4 24 16
ip xfrm policy set hthresh4 32 32
# This one makes the monitor write out what it holds back.
ip xfrm state add src 203.0.113.1 dst 203.0.113.2 proto esp spi 0xafff mode tunnel $GCM
@monitor stop
# Objects.
ip xfrm state flush
@monitor start SA
ip xfrm state add $ID spi 0xa010 mode tunnel $GCM
ip xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 dir out $TMPL
ip xfrm state delete $ID spi 0xa010
ip xfrm policy delete src 10.1.0.0/16 dst 10.2.0.0/16 dir out
ip xfrm state add src 203.0.113.1 dst 203.0.113.2 proto esp spi 0xafff mode tunnel $GCM
@monitor stop
ip xfrm state flush
@monitor start policy
ip xfrm state add $ID spi 0xa010 mode tunnel $GCM
ip xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 dir out $TMPL
ip xfrm state delete $ID spi 0xa010
ip xfrm policy delete src 10.1.0.0/16 dst 10.2.0.0/16 dir out
ip xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 dir out $TMPL
@monitor stop
@monitor start nokeys SA
ip xfrm state add $ID spi 0xa010 mode tunnel $GCM
@monitor stop
@monitor start bogus
@monitor stop
