# Policies of every direction, with and without templates.
@set TMPL tmpl src 192.0.2.1 dst 192.0.2.2 proto esp reqid 1 mode tunnel
ip xfrm policy list
ip xfrm policy count
ip xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 dir out $TMPL
ip xfrm policy add src 10.2.0.0/16 dst 10.1.0.0/16 dir in tmpl src 192.0.2.2 dst 192.0.2.1 proto esp reqid 1 mode tunnel
ip xfrm policy add src 10.2.0.0/16 dst 10.1.0.0/16 dir fwd tmpl src 192.0.2.2 dst 192.0.2.1 proto esp reqid 1 mode tunnel
ip xfrm policy list
ip xfrm policy count
ip -s xfrm policy count
ip -s xfrm policy list
ip xfrm policy flush
# Both families inside and outside.
ip xfrm policy add src 2001:db8:1::/48 dst 2001:db8:2::/48 dir out tmpl src 2001:db8::1 dst 2001:db8::2 proto esp reqid 2 mode tunnel
ip xfrm policy add src 2001:db8:1::/48 dst 2001:db8:3::/48 dir out $TMPL
ip xfrm policy add src 10.1.0.0/16 dst 10.3.0.0/16 dir out tmpl src 2001:db8::1 dst 2001:db8::2 proto esp reqid 3 mode tunnel
ip xfrm policy add dir out $TMPL
ip xfrm policy add src 10.9.0.0/16 dir in
ip xfrm policy add dst 2001:db8:9::/48 dir fwd
ip xfrm policy add src 0.0.0.0/0 dst 0.0.0.0/0 dir fwd priority 5
ip xfrm policy add src ::/0 dst ::/0 dir fwd priority 5
# Actions and priorities.
ip xfrm policy add src 10.4.0.0/16 dst 10.5.0.0/16 dir out action block
ip xfrm policy add src 10.4.0.0/16 dst 10.5.0.0/16 dir out action allow priority 1
ip xfrm policy add src 10.4.0.0/16 dst 10.5.0.0/16 dir out priority 0xffffffff
ip xfrm policy add src 10.4.0.0/16 dst 10.5.0.0/16 dir out priority 2147483648 action block $TMPL
ip xfrm policy add src 10.4.0.0/16 dst 10.6.0.0/16 dir in flag localok
ip xfrm policy add src 10.4.0.0/16 dst 10.6.0.0/16 dir fwd flag icmp localok
# Templates.
ip xfrm policy add src 10.7.0.0/16 dst 10.7.1.0/24 dir out $TMPL level use
ip xfrm policy add src 10.7.0.0/16 dst 10.7.2.0/24 dir out $TMPL level required
ip xfrm policy add src 10.7.0.0/16 dst 10.7.3.0/24 dir out tmpl src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1234 mode tunnel
ip xfrm policy add src 10.7.0.0/16 dst 10.7.4.0/24 dir out $TMPL $TMPL
ip xfrm policy add src 10.7.0.0/16 dst 10.7.5.0/24 dir out tmpl proto esp mode tunnel
ip xfrm policy add src 10.7.0.0/16 dst 10.7.6.0/24 dir in tmpl proto esp reqid 1 mode tunnel
ip xfrm policy list
ip xfrm policy list nosock
ip xfrm policy count
ip -s xfrm policy count
