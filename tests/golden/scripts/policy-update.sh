# Duplicates, updates, deletion, flushing; order of policies of one priority.
@set TMPL tmpl src 192.0.2.1 dst 192.0.2.2 proto esp reqid 1 mode tunnel
ip xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 dir out $TMPL
ip xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 dir out $TMPL
ip xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 dir out priority 10 $TMPL
ip xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 dir in priority 10 $TMPL
ip xfrm policy list
ip xfrm policy update src 10.1.0.0/16 dst 10.2.0.0/16 dir out action block
ip xfrm policy list
ip xfrm policy update src 10.1.0.0/16 dst 10.2.0.0/16 dir out priority 20 $TMPL
ip xfrm policy list
ip xfrm policy update src 10.8.0.0/16 dst 10.9.0.0/16 dir out $TMPL
ip xfrm policy update src 10.8.0.0/16 dst 10.9.0.0/16 dir fwd limit packet-hard 5 $TMPL
ip -s xfrm policy list
ip xfrm policy get src 10.8.0.0/16 dst 10.9.0.0/16 dir fwd
ip -s xfrm policy get src 10.8.0.0/16 dst 10.9.0.0/16 dir fwd
ip xfrm policy get src 10.8.0.0/16 dst 10.9.0.0/16 dir in
ip xfrm policy delete src 10.8.0.0/16 dst 10.9.0.0/16 dir in
ip xfrm policy delete src 10.8.0.0/16 dst 10.9.0.0/16 dir fwd
ip xfrm policy delete src 10.8.0.0/16 dst 10.9.0.0/16 dir fwd
ip xfrm policy delete src 10.8.0.0/15 dst 10.9.0.0/16 dir out
ip xfrm policy list
ip xfrm policy flush
ip xfrm policy list
ip xfrm policy flush
ip xfrm policy flush ptype main
# The list goes newest first, whatever the priority; an update makes a policy the newest.
ip xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 dir out priority 30
ip xfrm policy add src 10.1.0.0/16 dst 10.3.0.0/16 dir out priority 10
ip xfrm policy add src 10.1.0.0/16 dst 10.4.0.0/16 dir in priority 20
ip xfrm policy add src 10.1.0.0/16 dst 10.5.0.0/16 dir out priority 20
ip xfrm policy add src 10.1.0.0/16 dst 10.6.0.0/16 dir fwd priority 20
ip xfrm policy update src 10.1.0.0/16 dst 10.2.0.0/16 dir out priority 5
ip xfrm policy list
ip xfrm policy deleteall dir out
ip xfrm policy list
ip xfrm policy deleteall
ip xfrm policy list
ip xfrm policy deleteall
ip xfrm policy count
