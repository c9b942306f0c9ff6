// SPDX-License-Identifier: MIT

// Peak rates of the machine's vector units, by instruction.

#include <immintrin.h>
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>
#include <functional>
#include <x86intrin.h>
using clk=std::chrono::steady_clock;
static double now(){return std::chrono::duration<double>(clk::now().time_since_epoch()).count();}
void par(int nt,std::function<void(int)> f){std::vector<std::thread> v;for(int i=0;i<nt;i++)v.emplace_back(f,i);for(auto&t:v)t.join();}
#define R16(X) X(0)X(1)X(2)X(3)X(4)X(5)X(6)X(7)X(8)X(9)X(10)X(11)X(12)X(13)X(14)X(15)
void dp(long it){ asm volatile("1:\n"
#define D(n) "vdpbf16ps %%zmm30,%%zmm31,%%zmm" #n "\n"
 R16(D) "dec %0\n jnz 1b\n":"+r"(it)::"zmm0","zmm1","zmm2","zmm3","zmm4","zmm5","zmm6","zmm7","zmm8","zmm9","zmm10","zmm11","zmm12","zmm13","zmm14","zmm15","zmm30","zmm31","cc");}
void fm(long it){ asm volatile("1:\n"
#define F(n) "vfmadd231ps %%zmm30,%%zmm31,%%zmm" #n "\n"
 R16(F) "dec %0\n jnz 1b\n":"+r"(it)::"zmm0","zmm1","zmm2","zmm3","zmm4","zmm5","zmm6","zmm7","zmm8","zmm9","zmm10","zmm11","zmm12","zmm13","zmm14","zmm15","zmm30","zmm31","cc");}
void vn(long it){ asm volatile("1:\n"
#define V(n) "vpdpbusd %%zmm30,%%zmm31,%%zmm" #n "\n"
 R16(V) "dec %0\n jnz 1b\n":"+r"(it)::"zmm0","zmm1","zmm2","zmm3","zmm4","zmm5","zmm6","zmm7","zmm8","zmm9","zmm10","zmm11","zmm12","zmm13","zmm14","zmm15","zmm30","zmm31","cc");}
void pm(long it){ asm volatile("1:\n"
#define P(n) "vpermps %%zmm30,%%zmm31,%%zmm" #n "\n"
 R16(P) "dec %0\n jnz 1b\n":"+r"(it)::"zmm0","zmm1","zmm2","zmm3","zmm4","zmm5","zmm6","zmm7","zmm8","zmm9","zmm10","zmm11","zmm12","zmm13","zmm14","zmm15","zmm30","zmm31","cc");}
void ad(long it){ asm volatile("1:\n add $1,%%rax\n add $1,%%rax\n add $1,%%rax\n add $1,%%rax\n add $1,%%rax\n add $1,%%rax\n add $1,%%rax\n add $1,%%rax\n dec %0\n jnz 1b\n":"+r"(it)::"rax","cc");}
int main(){ _mm512_zeroall: ;
 for(int rep=0;rep<2;rep++){ double t=now(); ad(100000000); t=now()-t; printf("clock est %.2f GHz\n",8*1e8/t/1e9);
 struct{const char*n;void(*f)(long);int fl;}k[]={{"vdpbf16ps",dp,64},{"vfmadd231ps f32",fm,32},{"vpdpbusd int8",vn,128},{"vpermps",pm,16}};
 for(auto&x:k) for(int nt=1;nt<=2;nt++){ double best=0; for(int r=0;r<5;r++){ long it=30000000; double t=now(); par(nt,[&](int){x.f(it);}); t=now()-t; double v=(double)it*16*x.fl*nt/t; if(v>best)best=v;} printf("%-16s %d thr %.1f Gop/s (%.2f inst/ns/thr)\n",x.n,nt,best/1e9,best/1e9/x.fl/nt);} }
}
