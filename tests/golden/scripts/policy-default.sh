# Default actions, and the thresholds of the kernel's hash tables.
ip xfrm policy getdefault
ip xfrm policy setdefault in block
ip xfrm policy getdefault
ip xfrm policy setdefault out block fwd block
ip xfrm policy getdefault
ip xfrm policy setdefault in accept
ip xfrm policy getdefault
ip xfrm policy setdefault in accept fwd accept out accept
ip xfrm policy getdefault
ip xfrm policy setdefault in block in accept
ip xfrm policy getdefault
ip xfrm policy setdefault
ip xfrm policy setdefault in
ip xfrm policy setdefault bogus block
ip xfrm policy setdefault in bogus
ip xfrm policy getdefault
ip xfrm policy getdefault bogus
ip -s xfrm policy count
ip xfrm policy set hthresh4 24 16
ip -s xfrm policy count
ip xfrm policy set hthresh6 64 48 hthresh4 32 32
ip -s xfrm policy count
ip xfrm policy set hthresh4 33 16
ip xfrm policy set hthresh4 24
ip xfrm policy set hthresh6 129 0
ip xfrm policy set
ip -s xfrm policy count
