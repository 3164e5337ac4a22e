# What is refused, and how.
@set ID src 192.0.2.1 dst 192.0.2.2 proto esp
@set GCM aead rfc4106(gcm(aes)) 0x000102030405060708090a0b0c0d0e0f10111213 128
# Key lengths: the salt is part of the key.
ip xfrm state add $ID spi 0x7000 mode tunnel aead 'rfc4106(gcm(aes))' 0x000102030405060708090a0b0c0d0e0f 128
ip xfrm state add $ID spi 0x7000 mode tunnel aead 'rfc4106(gcm(aes))' 0x000102030405060708090a0b0c0d0e0f1011121314 128
ip xfrm state add $ID spi 0x7000 mode tunnel aead 'rfc4106(gcm(aes))' 0x0001020304050607 128
ip xfrm state add $ID spi 0x7000 mode tunnel aead 'rfc4106(gcm(aes))' 0x00010203 128
ip xfrm state add $ID spi 0x7000 mode tunnel aead 'rfc4106(gcm(aes))' 0x00 128
ip xfrm state add $ID spi 0x7000 mode tunnel aead 'rfc4106(gcm(aes))' 0x 128
ip xfrm state add $ID spi 0x7000 mode tunnel aead 'rfc4106(gcm(aes))' '' 128
ip xfrm state add $ID spi 0x7000 mode tunnel aead 'rfc4106(gcm(aes))' 0x000102030405060708090a0b0c0d0e0f1011121 128
ip xfrm state add $ID spi 0x7000 mode tunnel aead 'rfc4106(gcm(aes))' 0xzz0102030405060708090a0b0c0d0e0f10111213 128
ip xfrm state add $ID spi 0x7000 mode tunnel aead 'rfc4106(gcm(aes))' 0x$(seq -s '' -f '%02g' 10 73) 128
# ICV lengths that no kernel has.
ip xfrm state add $ID spi 0x7003 mode tunnel aead 'rfc4106(gcm(aes))' 0x000102030405060708090a0b0c0d0e0f10111213 130
ip xfrm state add $ID spi 0x7004 mode tunnel aead 'rfc4106(gcm(aes))' 0x000102030405060708090a0b0c0d0e0f10111213 120
ip xfrm state add $ID spi 0x7005 mode tunnel aead 'rfc4106(gcm(aes))' 0x000102030405060708090a0b0c0d0e0f10111213 0
ip xfrm state add $ID spi 0x7006 mode tunnel aead 'rfc4106(gcm(aes))' 0x000102030405060708090a0b0c0d0e0f10111213 256
ip xfrm state add $ID spi 0x7007 mode tunnel aead 'rfc4106(gcm(aes))' 0x000102030405060708090a0b0c0d0e0f10111213
ip xfrm state add $ID spi 0x7008 mode tunnel aead 'rfc4106(gcm(aes))' 0x000102030405060708090a0b0c0d0e0f10111213 many
# Algorithms.
ip xfrm state add $ID spi 0x7010 mode tunnel aead 'rfc4106(gcm(des))' 0x000102030405060708090a0b0c0d0e0f10111213 128
ip xfrm state add $ID spi 0x7010 mode tunnel aead bogus 0x000102030405060708090a0b0c0d0e0f10111213 128
ip xfrm state add $ID spi 0x7010 mode tunnel aead '' 0x000102030405060708090a0b0c0d0e0f10111213 128
ip xfrm state add $ID spi 0x7010 mode tunnel aead 'gcm(aes)' 0x000102030405060708090a0b0c0d0e0f 128
ip xfrm state add $ID spi 0x7010 mode tunnel enc bogus 0x00010203
ip xfrm state add $ID spi 0x7010 mode tunnel auth bogus 0x00010203
ip xfrm state add $ID spi 0x7010 mode tunnel auth-trunc bogus 0x00010203 96
ip xfrm state add $ID spi 0x7010 mode tunnel comp bogus
ip xfrm state add $ID spi 0x7010 mode tunnel
ip xfrm state add $ID spi 0x7010 mode tunnel $GCM $GCM
ip xfrm state add $ID spi 0x7010 mode tunnel $GCM auth 'hmac(sha1)' 0x0001020304050607
ip xfrm state add $ID spi 0x7010 mode tunnel $GCM enc 'cbc(aes)' 0x000102030405060708090a0b0c0d0e0f
ip xfrm state add $ID spi 0x7010 mode tunnel $GCM comp deflate
ip xfrm state add $ID spi 0x7010 mode tunnel aead "$(seq -s '' 100)" 0x00 128
# Identifiers.
ip xfrm state add $ID spi 0 mode tunnel $GCM
ip xfrm state add $ID mode tunnel $GCM
ip xfrm state add $ID spi 0xff mode tunnel $GCM
ip xfrm state add $ID spi 1 mode tunnel $GCM
ip xfrm state add $ID spi 0xffffffff mode tunnel $GCM
ip xfrm state add $ID spi 0x100000000 mode tunnel $GCM
ip xfrm state add $ID spi -1 mode tunnel $GCM
ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto bogus spi 0x7020 mode tunnel $GCM
ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto tcp spi 0x7020 mode tunnel $GCM
ip xfrm state add src 192.0.2.1 dst 192.0.2.2 spi 0x7020 mode tunnel $GCM
ip xfrm state add spi 0x7021 proto esp mode tunnel $GCM
ip xfrm state add src 192.0.2.1 dst 2001:db8::2 proto esp spi 0x7022 mode tunnel $GCM
ip xfrm state add src 2001:db8::1 dst 192.0.2.2 proto esp spi 0x7022 mode tunnel $GCM
ip xfrm state add src 192.0.2.300 dst 192.0.2.2 proto esp spi 0x7023 mode tunnel $GCM
# Modes, windows, flags, selectors.
ip xfrm state add $ID spi 0x7030 mode bogus $GCM
ip xfrm state add $ID spi 0x7030 mode ro $GCM
ip xfrm state add $ID spi 0x7030 mode in_trigger $GCM
ip xfrm state add $ID spi 0x7031 mode tunnel replay-window 5000 $GCM
ip xfrm state add $ID spi 0x7032 mode tunnel replay-window 100000 flag esn $GCM
ip xfrm state add $ID spi 0x7033 mode tunnel replay-window -1 $GCM
ip xfrm state add $ID spi 0x7034 mode tunnel flag bogus $GCM
ip xfrm state add $ID spi 0x7035 mode tunnel flag esn $GCM
ip xfrm state add $ID spi 0x7036 mode tunnel flag esn replay-window 0 $GCM
ip xfrm state add $ID spi 0x7037 mode tunnel sel src 10.0.0.0/33 $GCM
ip xfrm state add $ID spi 0x7038 mode tunnel sel src 2001:db8::/129 $GCM
ip xfrm state add $ID spi 0x7039 mode tunnel sel src 10.0.0.0/8 dst 2001:db8::/32 $GCM
ip xfrm state add $ID spi 0x703a mode tunnel sel proto tcp sport 70000 $GCM
ip xfrm state add $ID spi 0x703b mode tunnel sel sport 70 $GCM
ip xfrm state add $ID spi 0x703c mode tunnel sel dev nosuchdev $GCM
ip xfrm state add $ID spi 0x703d mode tunnel limit packet-hard many $GCM
ip xfrm state add $ID spi 0x703e mode tunnel mark 1 mask bogus $GCM
ip xfrm state add $ID spi 0x703f mode tunnel limit $GCM
ip xfrm state add $ID spi 0x7040 mode tunnel tfcpad bogus $GCM
ip xfrm state add $ID spi 0x7041 mode tunnel offload dev nosuchdev dir in $GCM
ip xfrm state add $ID spi 0x7042 mode tunnel offload dev lo dir in $GCM
ip xfrm state bogus
ip xfrm bogus
ip xfrm state list bogus
ip xfrm state count bogus
ip xfrm state list
