# Selectors of policies: hosts, prefixes, protocols, ports, ICMP types, devices.
@set TMPL tmpl src 192.0.2.1 dst 192.0.2.2 proto esp reqid 1 mode tunnel
ip xfrm policy add src 10.1.2.3 dst 10.2.3.4 dir out $TMPL
ip xfrm policy add src 10.1.2.3/8 dst 10.2.3.4/31 dir out $TMPL
ip xfrm policy add src 10.1.2.3/0 dst 10.2.3.4/0 dir out $TMPL
ip xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 proto tcp dir out $TMPL
ip xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 proto tcp dport 443 dir out $TMPL
ip xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 proto udp sport 53 dport 0 dir out $TMPL
ip xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 proto sctp sport 1 dport 65535 dir out $TMPL
ip xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 proto icmp dir out $TMPL
ip xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 proto icmp type 8 dir out $TMPL
ip xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 proto icmp type 3 code 4 dir out $TMPL
ip xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 proto icmp code 4 dir out $TMPL
ip xfrm policy add src 2001:db8:1::/48 dst 2001:db8:2::/48 proto ipv6-icmp type 128 code 0 dir out $TMPL
ip xfrm policy add src 2001:db8:1::/48 dst 2001:db8:2::/48 proto ipv6-icmp type 135 dir out action allow
ip xfrm policy add src 2001:db8:1::5 dst 2001:db8:2::/127 proto 17 sport 500 dport 500 dir in
ip xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 proto gre key 1 dir out $TMPL
ip xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 proto gre key 1.2.3.4 dir out $TMPL
ip xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 proto 99 dir out $TMPL
ip xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 proto esp dir out action allow
ip xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 dev lo dir out $TMPL
ip xfrm policy list
ip xfrm policy list dir out proto icmp
ip xfrm policy list dir in
ip xfrm policy list src 10.1.0.0/16
ip xfrm policy list src 10.1.0.0/16 dst 10.2.0.0/16 proto tcp dport 443
ip xfrm policy list src 2001:db8:1::/48
ip xfrm policy list action allow
ip xfrm policy list priority 1
ip xfrm policy get src 10.1.2.3 dst 10.2.3.4 dir out
ip xfrm policy get src 10.1.0.0/16 dst 10.2.0.0/16 proto tcp dport 443 dir out
ip xfrm policy get src 10.1.0.0/16 dst 10.2.0.0/16 proto tcp dport 444 dir out
ip xfrm policy get src 10.1.0.0/16 dst 10.2.0.0/16 proto tcp dport 443 dir in
ip xfrm policy get src 10.1.0.0/17 dst 10.2.0.0/16 proto tcp dport 443 dir out
ip xfrm policy get src 10.1.2.99/8 dst 10.2.3.4/31 dir out
ip xfrm policy delete src 10.1.0.0/16 dst 10.2.0.0/16 proto icmp type 3 code 4 dir out
ip xfrm policy delete src 10.1.0.0/16 dst 10.2.0.0/16 proto icmp type 3 code 4 dir out
ip xfrm policy count
