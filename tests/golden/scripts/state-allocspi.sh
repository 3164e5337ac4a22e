# SPI allocation, and the SA that takes the larval one's place.
@set ID src 192.0.2.1 dst 192.0.2.2 proto esp
@set GCM aead rfc4106(gcm(aes)) 0x000102030405060708090a0b0c0d0e0f10111213 128
ip xfrm state allocspi $ID mode tunnel reqid 1 min 0x9000 max 0x9000
ip xfrm state list
ip -s xfrm state list
ip xfrm state count
ip xfrm state get $ID spi 0x9000
# The range is exhausted; the same request with the same sequence number finds the larval SA.
ip xfrm state allocspi $ID mode tunnel reqid 1 min 0x9000 max 0x9000
ip xfrm state allocspi $ID mode tunnel reqid 1 seq 5 min 0x9001 max 0x9001
ip xfrm state allocspi $ID mode tunnel reqid 1 seq 5 min 0x9002 max 0x9002
ip xfrm state allocspi $ID mode tunnel reqid 2 seq 5 min 0x9003 max 0x9003
ip xfrm state list
ip xfrm state add $ID spi 0x9000 mode tunnel reqid 1 $GCM
ip xfrm state update $ID spi 0x9000 mode tunnel reqid 1 $GCM
ip xfrm state list
ip xfrm state update $ID spi 0x9000 mode tunnel reqid 1 $GCM
ip xfrm state add $ID spi 0x9001 mode tunnel reqid 7 seq 5 $GCM
ip xfrm state list
ip xfrm state flush
# Ranges. (One from 0 is left out: this kernel corrupts its table when it hands out SPI 0.)
ip xfrm state allocspi $ID mode tunnel min 0x9100 max 0x91ff | sed 's/spi 0x000091../spi 0x000091xx/'
ip xfrm state allocspi $ID mode tunnel min 0xc0000000 max 0xcfffffff reqid 3 | sed 's/spi 0xc......./spi 0xcxxxxxxx/'
ip xfrm state allocspi $ID mode tunnel | sed 's/spi 0x......../spi 0xxxxxxxxx/'
ip xfrm state allocspi $ID mode tunnel min 0x9200 max 0x9100
ip xfrm state allocspi $ID mode tunnel min 0x9200
ip xfrm state allocspi $ID mode tunnel max 0x9200
ip xfrm state allocspi $ID mode tunnel min -1 max 5
ip xfrm state allocspi $ID spi 0x9999 mode tunnel
ip xfrm state allocspi $ID mode bogus
ip xfrm state count
ip xfrm state flush
# Other identities.
ip xfrm state allocspi src 2001:db8::1 dst 2001:db8::2 proto esp mode tunnel reqid 4 min 0x9300 max 0x9300
ip xfrm state allocspi src 192.0.2.1 dst 192.0.2.2 proto bogus mode tunnel
ip xfrm state allocspi src 192.0.2.1 dst 192.0.2.2 mode tunnel min 0x9301 max 0x9301
ip xfrm state allocspi src 192.0.2.1 dst 192.0.2.2 proto tcp mode tunnel min 0x9301 max 0x9301
ip xfrm state allocspi dst 192.0.2.2 proto esp mode tunnel min 0x9302 max 0x9302
ip xfrm state allocspi src 192.0.2.1 proto esp mode tunnel min 0x9303 max 0x9303
ip xfrm state allocspi $ID min 0x9304 max 0x9304
ip xfrm state allocspi $ID mode tunnel mark 3 mask 7 min 0x9305 max 0x9305
ip xfrm state allocspi src 192.0.2.1 dst 192.0.2.2 proto esp mode tunnel seq 11 min 0x9306 max 0x9306
ip xfrm state allocspi src 192.0.2.9 dst 192.0.2.8 proto esp mode tunnel seq 11 min 0x9306 max 0x9306
ip xfrm state list
# An address pair allocates the SPI that another pair of the same destination has.
ip xfrm state flush
ip xfrm state add $ID spi 0x9400 mode tunnel $GCM
ip xfrm state allocspi $ID mode tunnel min 0x9400 max 0x9400
ip xfrm state allocspi src 192.0.2.7 dst 192.0.2.2 proto esp mode tunnel min 0x9400 max 0x9400
ip xfrm state allocspi src 192.0.2.1 dst 192.0.2.3 proto esp mode tunnel min 0x9400 max 0x9400
ip xfrm state delete src 192.0.2.1 dst 192.0.2.3 proto esp spi 0x9400
ip xfrm state delete src 192.0.2.1 dst 192.0.2.3 proto esp spi 0x9400
ip xfrm state list
