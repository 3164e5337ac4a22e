# Policies of the sub type, which kernels without CONFIG_XFRM_SUB_POLICY do not know.
@set TMPL tmpl src 192.0.2.1 dst 192.0.2.2 proto esp reqid 1 mode tunnel
@set SEL src 10.1.0.0/16 dst 10.2.0.0/16
ip xfrm policy add $SEL dir out ptype main $TMPL
ip xfrm policy add $SEL dir out ptype sub $TMPL
ip xfrm policy list
ip xfrm policy list ptype sub
ip xfrm policy get $SEL dir out ptype sub
ip xfrm policy count
ip xfrm policy delete $SEL dir out ptype main
ip xfrm policy list
ip xfrm policy flush ptype main
ip xfrm policy list
ip xfrm policy flush ptype sub
ip xfrm policy list
