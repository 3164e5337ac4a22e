# Marks, interface identifiers, indexes, types and limits of policies.
@set TMPL tmpl src 192.0.2.1 dst 192.0.2.2 proto esp reqid 1 mode tunnel
@set SEL src 10.1.0.0/16 dst 10.2.0.0/16
ip xfrm policy add $SEL dir out mark 1 $TMPL
ip xfrm policy add $SEL dir out mark 2 mask 0xff $TMPL
ip xfrm policy add $SEL dir out mark 2 mask 0xff $TMPL
ip xfrm policy add $SEL dir out mark 0x12 mask 0x0f $TMPL
ip xfrm policy add $SEL dir out $TMPL
ip xfrm policy add $SEL dir out if_id 7 $TMPL
ip xfrm policy add $SEL dir out if_id 8 $TMPL
ip xfrm policy add $SEL dir out if_id 8 $TMPL
ip xfrm policy add $SEL dir out if_id 8 mark 3 $TMPL
ip xfrm policy list
ip xfrm policy get $SEL dir out
ip xfrm policy get $SEL dir out mark 1
ip xfrm policy get $SEL dir out mark 2
ip xfrm policy get $SEL dir out mark 2 mask 0xff
ip xfrm policy get $SEL dir out if_id 7
ip xfrm policy get $SEL dir out if_id 9
ip xfrm policy get $SEL dir out if_id 8 mark 3
ip xfrm policy delete $SEL dir out mark 2
ip xfrm policy delete $SEL dir out mark 2 mask 0xff
ip xfrm policy delete $SEL dir out if_id 7
ip xfrm policy delete $SEL dir out
ip xfrm policy list
ip xfrm policy flush
# Indexes: the low three bits hold the direction; the rest counts policies of the namespace.
ip xfrm policy add $SEL dir out index 0x10001 $TMPL
ip xfrm policy add $SEL dir in index 0x10000 $TMPL
ip xfrm policy add $SEL dir fwd index 0x10002 $TMPL
ip xfrm policy add $SEL dir fwd index 0x10008 priority 9 $TMPL
ip xfrm policy add src 10.7.0.0/16 dir out index 0x10001 $TMPL
ip xfrm policy add src 10.8.0.0/16 dir out index 0x10010 $TMPL
ip xfrm policy add src 10.9.0.0/16 dir out index 0 $TMPL
ip xfrm policy list
ip xfrm policy get index 0x10001 dir out
ip xfrm policy get index 65536 dir in
ip xfrm policy get index 0x10001 dir in
ip xfrm policy get index 0x10001
ip xfrm policy get index 0x10009 dir out
ip xfrm policy get index 0 dir out
ip xfrm policy get index $(ip -s xfrm policy list src 10.9.0.0/16 | sed -n 's/.*index \([0-9]*\).*/\1/p') dir out
ip xfrm policy get $SEL index 0x10001 dir out
ip xfrm policy delete index 0x10001 dir in
ip xfrm policy delete index 0x10001 dir out
ip xfrm policy delete index 0x10001 dir out
ip xfrm policy delete $SEL dir in
ip xfrm policy update $SEL dir fwd index 0x20002 priority 11 $TMPL
ip xfrm policy list
ip xfrm policy list index 0x10002
ip xfrm policy flush
# Types.
ip xfrm policy add $SEL dir out ptype main $TMPL
ip xfrm policy list
ip xfrm policy list ptype main
ip xfrm policy list ptype sub
ip xfrm policy get $SEL dir out ptype main
ip xfrm policy count
ip xfrm policy delete $SEL dir out ptype main
ip xfrm policy list
ip xfrm policy add $SEL dir out ptype main $TMPL
ip xfrm policy flush ptype main
ip xfrm policy list
# Limits.
ip xfrm policy add $SEL dir out limit time-soft 100 limit time-hard 200 limit byte-soft 300 limit byte-hard 400 limit packet-soft 500 limit packet-hard 600 limit time-use-soft 700 limit time-use-hard 800 $TMPL
ip xfrm policy add $SEL dir in limit time-hard 2 $TMPL
ip -s xfrm policy list
sleep 4
ip xfrm policy list
