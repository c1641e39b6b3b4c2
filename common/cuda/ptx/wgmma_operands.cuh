// The operand lists of wgmma's 32 sizes: an asm statement must spell out every register.
//
// For N columns a thread has N/2 accumulators. PTX_WGMMA_NAMES_<N> is the text "%0, %1, …" that
// names them, PTX_WGMMA_BOUND_<N>(d) binds them to d[0], d[1], …; each adds four to the ones
// before. PTX_WGMMA_FOR_EACH_N(F) expands F(N, i0, …, i9) for every N, where i0 … i9 are the
// numbers of the ten operands that follow the accumulators.
#pragma once

#define PTX_WGMMA_NAMES_8 "%0, %1, %2, %3"
#define PTX_WGMMA_NAMES_16 PTX_WGMMA_NAMES_8 ", %4, %5, %6, %7"
#define PTX_WGMMA_NAMES_24 PTX_WGMMA_NAMES_16 ", %8, %9, %10, %11"
#define PTX_WGMMA_NAMES_32 PTX_WGMMA_NAMES_24 ", %12, %13, %14, %15"
#define PTX_WGMMA_NAMES_40 PTX_WGMMA_NAMES_32 ", %16, %17, %18, %19"
#define PTX_WGMMA_NAMES_48 PTX_WGMMA_NAMES_40 ", %20, %21, %22, %23"
#define PTX_WGMMA_NAMES_56 PTX_WGMMA_NAMES_48 ", %24, %25, %26, %27"
#define PTX_WGMMA_NAMES_64 PTX_WGMMA_NAMES_56 ", %28, %29, %30, %31"
#define PTX_WGMMA_NAMES_72 PTX_WGMMA_NAMES_64 ", %32, %33, %34, %35"
#define PTX_WGMMA_NAMES_80 PTX_WGMMA_NAMES_72 ", %36, %37, %38, %39"
#define PTX_WGMMA_NAMES_88 PTX_WGMMA_NAMES_80 ", %40, %41, %42, %43"
#define PTX_WGMMA_NAMES_96 PTX_WGMMA_NAMES_88 ", %44, %45, %46, %47"
#define PTX_WGMMA_NAMES_104 PTX_WGMMA_NAMES_96 ", %48, %49, %50, %51"
#define PTX_WGMMA_NAMES_112 PTX_WGMMA_NAMES_104 ", %52, %53, %54, %55"
#define PTX_WGMMA_NAMES_120 PTX_WGMMA_NAMES_112 ", %56, %57, %58, %59"
#define PTX_WGMMA_NAMES_128 PTX_WGMMA_NAMES_120 ", %60, %61, %62, %63"
#define PTX_WGMMA_NAMES_136 PTX_WGMMA_NAMES_128 ", %64, %65, %66, %67"
#define PTX_WGMMA_NAMES_144 PTX_WGMMA_NAMES_136 ", %68, %69, %70, %71"
#define PTX_WGMMA_NAMES_152 PTX_WGMMA_NAMES_144 ", %72, %73, %74, %75"
#define PTX_WGMMA_NAMES_160 PTX_WGMMA_NAMES_152 ", %76, %77, %78, %79"
#define PTX_WGMMA_NAMES_168 PTX_WGMMA_NAMES_160 ", %80, %81, %82, %83"
#define PTX_WGMMA_NAMES_176 PTX_WGMMA_NAMES_168 ", %84, %85, %86, %87"
#define PTX_WGMMA_NAMES_184 PTX_WGMMA_NAMES_176 ", %88, %89, %90, %91"
#define PTX_WGMMA_NAMES_192 PTX_WGMMA_NAMES_184 ", %92, %93, %94, %95"
#define PTX_WGMMA_NAMES_200 PTX_WGMMA_NAMES_192 ", %96, %97, %98, %99"
#define PTX_WGMMA_NAMES_208 PTX_WGMMA_NAMES_200 ", %100, %101, %102, %103"
#define PTX_WGMMA_NAMES_216 PTX_WGMMA_NAMES_208 ", %104, %105, %106, %107"
#define PTX_WGMMA_NAMES_224 PTX_WGMMA_NAMES_216 ", %108, %109, %110, %111"
#define PTX_WGMMA_NAMES_232 PTX_WGMMA_NAMES_224 ", %112, %113, %114, %115"
#define PTX_WGMMA_NAMES_240 PTX_WGMMA_NAMES_232 ", %116, %117, %118, %119"
#define PTX_WGMMA_NAMES_248 PTX_WGMMA_NAMES_240 ", %120, %121, %122, %123"
#define PTX_WGMMA_NAMES_256 PTX_WGMMA_NAMES_248 ", %124, %125, %126, %127"

#define PTX_WGMMA_BOUND_8(d) "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define PTX_WGMMA_BOUND_16(d) PTX_WGMMA_BOUND_8(d), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define PTX_WGMMA_BOUND_24(d) \
  PTX_WGMMA_BOUND_16(d), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define PTX_WGMMA_BOUND_32(d) \
  PTX_WGMMA_BOUND_24(d), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define PTX_WGMMA_BOUND_40(d) \
  PTX_WGMMA_BOUND_32(d), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define PTX_WGMMA_BOUND_48(d) \
  PTX_WGMMA_BOUND_40(d), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define PTX_WGMMA_BOUND_56(d) \
  PTX_WGMMA_BOUND_48(d), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27])
#define PTX_WGMMA_BOUND_64(d) \
  PTX_WGMMA_BOUND_56(d), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define PTX_WGMMA_BOUND_72(d) \
  PTX_WGMMA_BOUND_64(d), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define PTX_WGMMA_BOUND_80(d) \
  PTX_WGMMA_BOUND_72(d), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define PTX_WGMMA_BOUND_88(d) \
  PTX_WGMMA_BOUND_80(d), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43])
#define PTX_WGMMA_BOUND_96(d) \
  PTX_WGMMA_BOUND_88(d), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define PTX_WGMMA_BOUND_104(d) \
  PTX_WGMMA_BOUND_96(d), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51])
#define PTX_WGMMA_BOUND_112(d) \
  PTX_WGMMA_BOUND_104(d), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define PTX_WGMMA_BOUND_120(d) \
  PTX_WGMMA_BOUND_112(d), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59])
#define PTX_WGMMA_BOUND_128(d) \
  PTX_WGMMA_BOUND_120(d), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define PTX_WGMMA_BOUND_136(d) \
  PTX_WGMMA_BOUND_128(d), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])
#define PTX_WGMMA_BOUND_144(d) \
  PTX_WGMMA_BOUND_136(d), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define PTX_WGMMA_BOUND_152(d) \
  PTX_WGMMA_BOUND_144(d), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75])
#define PTX_WGMMA_BOUND_160(d) \
  PTX_WGMMA_BOUND_152(d), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define PTX_WGMMA_BOUND_168(d) \
  PTX_WGMMA_BOUND_160(d), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83])
#define PTX_WGMMA_BOUND_176(d) \
  PTX_WGMMA_BOUND_168(d), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define PTX_WGMMA_BOUND_184(d) \
  PTX_WGMMA_BOUND_176(d), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91])
#define PTX_WGMMA_BOUND_192(d) \
  PTX_WGMMA_BOUND_184(d), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define PTX_WGMMA_BOUND_200(d) \
  PTX_WGMMA_BOUND_192(d), "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99])
#define PTX_WGMMA_BOUND_208(d) \
  PTX_WGMMA_BOUND_200(d), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define PTX_WGMMA_BOUND_216(d) \
  PTX_WGMMA_BOUND_208(d), "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107])
#define PTX_WGMMA_BOUND_224(d) \
  PTX_WGMMA_BOUND_216(d), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define PTX_WGMMA_BOUND_232(d) \
  PTX_WGMMA_BOUND_224(d), "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115])
#define PTX_WGMMA_BOUND_240(d) \
  PTX_WGMMA_BOUND_232(d), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define PTX_WGMMA_BOUND_248(d) \
  PTX_WGMMA_BOUND_240(d), "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123])
#define PTX_WGMMA_BOUND_256(d) \
  PTX_WGMMA_BOUND_248(d), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

#define PTX_WGMMA_FOR_EACH_N(F)                            \
  F(8, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)                   \
  F(16, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17)              \
  F(24, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21)            \
  F(32, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25)            \
  F(40, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29)            \
  F(48, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33)            \
  F(56, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37)            \
  F(64, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41)            \
  F(72, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45)            \
  F(80, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49)            \
  F(88, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53)            \
  F(96, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57)            \
  F(104, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61)           \
  F(112, 56, 57, 58, 59, 60, 61, 62, 63, 64, 65)           \
  F(120, 60, 61, 62, 63, 64, 65, 66, 67, 68, 69)           \
  F(128, 64, 65, 66, 67, 68, 69, 70, 71, 72, 73)           \
  F(136, 68, 69, 70, 71, 72, 73, 74, 75, 76, 77)           \
  F(144, 72, 73, 74, 75, 76, 77, 78, 79, 80, 81)           \
  F(152, 76, 77, 78, 79, 80, 81, 82, 83, 84, 85)           \
  F(160, 80, 81, 82, 83, 84, 85, 86, 87, 88, 89)           \
  F(168, 84, 85, 86, 87, 88, 89, 90, 91, 92, 93)           \
  F(176, 88, 89, 90, 91, 92, 93, 94, 95, 96, 97)           \
  F(184, 92, 93, 94, 95, 96, 97, 98, 99, 100, 101)         \
  F(192, 96, 97, 98, 99, 100, 101, 102, 103, 104, 105)     \
  F(200, 100, 101, 102, 103, 104, 105, 106, 107, 108, 109) \
  F(208, 104, 105, 106, 107, 108, 109, 110, 111, 112, 113) \
  F(216, 108, 109, 110, 111, 112, 113, 114, 115, 116, 117) \
  F(224, 112, 113, 114, 115, 116, 117, 118, 119, 120, 121) \
  F(232, 116, 117, 118, 119, 120, 121, 122, 123, 124, 125) \
  F(240, 120, 121, 122, 123, 124, 125, 126, 127, 128, 129) \
  F(248, 124, 125, 126, 127, 128, 129, 130, 131, 132, 133) \
  F(256, 128, 129, 130, 131, 132, 133, 134, 135, 136, 137)
