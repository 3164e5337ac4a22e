# Filters of list and deleteall; src and dst are filtered in the kernel, the rest in iproute2.
@set ID src 192.0.2.1 dst 192.0.2.2 proto esp
@set GCM aead rfc4106(gcm(aes)) 0x000102030405060708090a0b0c0d0e0f10111213 128
ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x5000 reqid 1 mode tunnel $GCM
ip xfrm state add src 192.0.2.2 dst 192.0.2.1 proto esp spi 0x5001 reqid 1 mode tunnel $GCM
ip xfrm state add src 192.0.2.3 dst 192.0.2.1 proto esp spi 0x5002 reqid 2 mode tunnel flag esn replay-window 64 $GCM
ip xfrm state add src 192.0.2.1 dst 192.0.2.3 proto esp spi 0x5003 reqid 2 mode tunnel $GCM
ip xfrm state add src 2001:db8::1 dst 2001:db8::2 proto esp spi 0x5004 reqid 3 mode tunnel $GCM
ip xfrm state add src 2001:db8::2 dst 2001:db8::1 proto esp spi 0x5005 reqid 3 mode tunnel $GCM
ip xfrm state add src 198.51.100.1 dst 198.51.100.2 proto esp spi 0x5006 reqid 4 mode tunnel $GCM
ip xfrm state list src 192.0.2.1
ip xfrm state list dst 192.0.2.1
ip xfrm state list src 192.0.2.1 dst 192.0.2.2
ip xfrm state list src 192.0.2.0/24
ip xfrm state list dst 192.0.2.0/30
ip xfrm state list src 192.0.2.0/24 dst 192.0.2.3/32
ip xfrm state list src 2001:db8::1
ip xfrm state list src 2001:db8::/32
ip xfrm state list src 0.0.0.0/0
ip xfrm state list src ::/0
ip xfrm state list src 203.0.113.1
ip xfrm state list proto esp
ip xfrm state list proto ah
ip xfrm state list spi 0x5002
ip xfrm state list mode tunnel
ip xfrm state list mode transport
ip xfrm state list reqid 2
ip xfrm state list reqid 9
ip xfrm state list flag esn
ip -4 xfrm state list
ip -6 xfrm state list
ip -o xfrm state list reqid 1
ip xfrm state deleteall src 192.0.2.1
ip xfrm state list
ip xfrm state deleteall reqid 3
ip xfrm state list
ip xfrm state deleteall proto ah
ip xfrm state deleteall spi 0x5006
ip xfrm state deleteall
ip xfrm state list
ip xfrm state count
ip xfrm state deleteall
