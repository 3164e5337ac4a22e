# Extended sequence numbers and replay windows.
@set ID src 192.0.2.1 dst 192.0.2.2 proto esp
@set GCM aead rfc4106(gcm(aes)) 0x000102030405060708090a0b0c0d0e0f10111213 128
ip xfrm state add $ID spi 0x2000 mode tunnel replay-window 0 $GCM
ip xfrm state add $ID spi 0x2001 mode tunnel replay-window 32 $GCM
ip xfrm state add $ID spi 0x2002 mode tunnel replay-window 33 $GCM
ip xfrm state add $ID spi 0x2003 mode tunnel replay-window 64 $GCM
ip xfrm state add $ID spi 0x2004 mode tunnel replay-window 128 $GCM
ip xfrm state add $ID spi 0x2005 mode tunnel replay-window 255 $GCM
ip xfrm state add $ID spi 0x2006 mode tunnel replay-window 256 $GCM
ip xfrm state add $ID spi 0x2010 mode tunnel flag esn $GCM
ip xfrm state add $ID spi 0x2011 mode tunnel replay-window 1 flag esn $GCM
ip xfrm state add $ID spi 0x2012 mode tunnel replay-window 32 flag esn $GCM
ip xfrm state add $ID spi 0x2013 mode tunnel replay-window 64 flag esn $GCM
ip xfrm state add $ID spi 0x2014 mode tunnel replay-window 128 flag esn $GCM
ip xfrm state add $ID spi 0x2015 mode tunnel replay-window 255 flag esn $GCM
ip xfrm state add $ID spi 0x2016 mode tunnel replay-window 512 flag esn $GCM
ip xfrm state add $ID spi 0x2017 mode tunnel replay-window 1024 flag esn $GCM
ip xfrm state add $ID spi 0x2018 mode tunnel replay-window 2048 flag esn $GCM
ip xfrm state add $ID spi 0x2019 mode tunnel replay-window 4096 flag esn $GCM
ip xfrm state add $ID spi 0x201a mode tunnel replay-window 4097 flag esn $GCM
ip xfrm state add $ID spi 0x201b mode tunnel replay-window 0 flag esn $GCM
ip xfrm state add $ID spi 0x201c mode tunnel replay-window 100 flag esn $GCM
# Sequence numbers given at installation.
ip xfrm state add $ID spi 0x2020 mode tunnel replay-window 32 replay-seq 100 replay-oseq 200 $GCM
ip xfrm state add $ID spi 0x2021 mode tunnel replay-window 64 flag esn replay-seq 100 replay-oseq 200 $GCM
ip xfrm state add $ID spi 0x2022 mode tunnel replay-window 64 flag esn replay-seq 100 replay-seq-hi 3 replay-oseq 200 replay-oseq-hi 4 $GCM
ip xfrm state add $ID spi 0x2023 mode tunnel replay-oseq 0xffffffff $GCM
ip xfrm state add $ID spi 0x2024 mode tunnel replay-oseq-hi 4 $GCM
ip xfrm state add src 2001:db8::1 dst 2001:db8::2 proto esp spi 0x2030 mode tunnel replay-window 128 flag esn $GCM
for spi in 2000 2001 2002 2003 2004 2005 2006 2010 2011 2012 2013 2014 2015 2016; do ip xfrm state get $ID spi 0x$spi; done
for spi in 2017 2018 2019 201a 201b 201c 2020 2021 2022 2023 2024; do ip xfrm state get $ID spi 0x$spi; done
ip xfrm state get src 2001:db8::1 dst 2001:db8::2 proto esp spi 0x2030
ip -s xfrm state get $ID spi 0x2022
ip xfrm state count
