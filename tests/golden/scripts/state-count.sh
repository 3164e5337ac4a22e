# Counting. The number of hash buckets follows the number of SAs, some time later.
@set ID src 192.0.2.1 dst 192.0.2.2 proto esp
@set GCM aead rfc4106(gcm(aes)) 0x000102030405060708090a0b0c0d0e0f10111213 128
ip xfrm state count
ip -s xfrm state count
ip xfrm state add $ID spi 0x8000 mode tunnel $GCM
ip xfrm state count
ip -s xfrm state count
for i in $(seq 100); do echo "xfrm state add $ID spi $((0x8100 + i)) mode tunnel $GCM"; done | ip -batch -
ip xfrm state count
sleep 1
ip -s xfrm state count
ip xfrm state flush
ip -s xfrm state count
