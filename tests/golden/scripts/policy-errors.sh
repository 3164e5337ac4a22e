# What is refused, and how.
@set TMPL tmpl src 192.0.2.1 dst 192.0.2.2 proto esp reqid 1 mode tunnel
@set SEL src 10.1.0.0/16 dst 10.2.0.0/16
ip xfrm policy add $SEL
ip xfrm policy add $SEL dir
ip xfrm policy add $SEL dir bogus
ip xfrm policy add $SEL dir 3
ip xfrm policy add src 10.0.0.0/33 dir out $TMPL
ip xfrm policy add src 2001:db8::/129 dir out $TMPL
ip xfrm policy add src 10.0.0.0/8 dst 2001:db8::/32 dir out $TMPL
ip xfrm policy add src bogus dir out $TMPL
ip xfrm policy add $SEL proto bogus dir out $TMPL
ip xfrm policy add $SEL sport 1 dir out $TMPL
ip xfrm policy add $SEL proto icmp sport 1 dir out $TMPL
ip xfrm policy add $SEL proto tcp type 1 dir out $TMPL
ip xfrm policy add $SEL proto tcp sport 65536 dir out $TMPL
ip xfrm policy add $SEL proto icmp type 256 dir out $TMPL
ip xfrm policy add $SEL dev nosuchdev dir out $TMPL
ip xfrm policy add $SEL dir out action bogus
ip xfrm policy add $SEL dir out priority bogus
ip xfrm policy add $SEL dir out priority 0x100000000
ip xfrm policy add $SEL dir out ptype bogus
ip xfrm policy add $SEL dir out flag bogus
ip xfrm policy add $SEL dir out index 3
ip xfrm policy add $SEL dir out index 8
ip xfrm policy add $SEL dir out tmpl
ip xfrm policy add $SEL dir out tmpl src 192.0.2.1 dst 192.0.2.2 mode tunnel
ip xfrm policy add $SEL dir out tmpl src 192.0.2.1 dst 192.0.2.2 proto tcp mode tunnel
ip xfrm policy add $SEL dir out tmpl src 192.0.2.1 dst 2001:db8::2 proto esp mode tunnel
ip xfrm policy add $SEL dir out tmpl src 2001:db8::1 dst 192.0.2.2 proto esp mode tunnel
ip xfrm policy add $SEL dir out tmpl src 192.0.2.1 dst 192.0.2.2 proto esp mode bogus
ip xfrm policy add $SEL dir out $TMPL level bogus
ip xfrm policy add src 2001:db8:1::/48 dst 2001:db8:2::/48 dir out tmpl src 192.0.2.1 dst 192.0.2.2 proto esp mode transport
ip xfrm policy add src 2001:db8:1::/48 dst 2001:db8:2::/48 dir out tmpl proto esp mode transport
# At most six templates fit; iproute2 checks that, too.
ip xfrm policy add src 10.6.0.0/16 dst 10.7.0.0/16 dir out $TMPL $TMPL $TMPL $TMPL $TMPL $TMPL
ip xfrm policy add src 10.7.0.0/16 dst 10.7.0.0/16 dir out $TMPL $TMPL $TMPL $TMPL $TMPL $TMPL $TMPL
ip xfrm policy delete $SEL dir out
ip xfrm policy delete $SEL
ip xfrm policy delete
ip xfrm policy delete dir out
ip xfrm policy get $SEL dir out
ip xfrm policy get dir out
ip xfrm policy get
ip xfrm policy get $SEL dir bogus
ip xfrm policy flush bogus
ip xfrm policy flush ptype bogus
ip xfrm policy list bogus
ip xfrm policy bogus
ip xfrm policy list
ip xfrm policy count
