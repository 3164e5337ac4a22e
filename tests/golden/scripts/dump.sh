# Dumps that need many datagrams, and many operations in one program.
@set KEY rfc4106(gcm(aes)) 0x000102030405060708090a0b0c0d0e0f10111213
for i in $(seq 200); do echo "xfrm state add src 10.0.$((i / 100)).$((i % 100)) dst 10.1.0.1 proto esp spi $((4096 + i)) reqid $i mode tunnel replay-window 128 flag esn aead $KEY 128"; done | ip -batch -
for i in $(seq 200); do echo "xfrm policy add src 10.2.$((i / 100)).$((i % 100))/32 dst 10.3.0.0/16 dir out priority $i tmpl src 10.0.$((i / 100)).$((i % 100)) dst 10.1.0.1 proto esp reqid $i mode tunnel"; done | ip -batch -
ip xfrm state count
ip xfrm policy count
ip xfrm state list
ip xfrm policy list
ip xfrm state list src 10.0.1.0/24 | grep -c ^src
ip xfrm state list reqid 77
ip xfrm policy list priority 77
# A batch stops at its first failure, unless forced.
printf '%s\n' 'xfrm state count' 'xfrm state delete dst 10.1.0.9 proto esp spi 1' 'xfrm policy count' | ip -batch -
printf '%s\n' 'xfrm state count' 'xfrm state delete dst 10.1.0.9 proto esp spi 1' 'xfrm policy count' | ip -force -batch -
# deleteall answers a dump with batches of deletions.
ip xfrm state deleteall src 10.0.0.0/24
ip xfrm state count
ip xfrm policy deleteall src 10.2.0.0/24
ip xfrm policy count
ip xfrm state deleteall
ip xfrm policy deleteall
ip xfrm state count
ip xfrm policy count
